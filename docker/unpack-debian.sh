#!/bin/sh
# Unpacks sets of Debian packages, as locked, into a directory: unpack-debian.sh LOCK ARCHITECTURE DIRECTORY SET...
#
# Debian's mirrors have the newest version of a package only. One that is gone is had from snapshot.debian.org as of when the lock was made.
set -eu
lock=$1 architecture=$2 directory=$3
shift 3

chosen=$(mktemp -d)
for set; do
    awk -v set="$set" -v architecture="$architecture" '$1 == set && $2 == architecture { print $3, $4, $5 }' "$lock"
done > "$chosen/packages"
[ -s "$chosen/packages" ] || { echo "unpack-debian: $lock has no packages for $architecture in $*; run make lock" >&2; exit 1; }

cd "$chosen"
fetch() {
    while read -r name version digest; do
        # What is for all processors has no architecture in its name.
        ls "${name}"_*.deb >/dev/null 2>&1 \
            || apt-get -q -q -o APT::Sandbox::User=root download "$name:$architecture=$version" 2>/dev/null \
            || apt-get -q -q -o APT::Sandbox::User=root download "$name=$version" || return 1
    done < packages
}
dpkg --add-architecture "$architecture"
apt-get -q -q update
if ! fetch; then
    moment=$(sed -n 's/^# As of \([0-9TZ]*\)\.$/\1/p' "$lock")
    echo "unpack-debian: not all on the mirror any more; asking snapshot.debian.org for $moment" >&2
    for archive in "debian bookworm" "debian bookworm-updates" "debian-security bookworm-security"; do
        set -- $archive
        echo "deb [check-valid-until=no signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://snapshot.debian.org/archive/$1/$moment $2 main"
    done > /etc/apt/sources.list.d/snapshot.list
    apt-get -q -q update
    fetch
fi

mkdir -p "$directory/var/lib/dpkg/status.d"
for each in bin lib sbin lib64; do # as in all of Debian 12
    mkdir -p "$directory/usr/$each"
    [ -e "$directory/$each" ] || ln -s "usr/$each" "$directory/$each"
done
while read -r name version digest; do
    package=$(echo "${name}"_*.deb)
    echo "$digest  $package" | sha256sum --check --quiet -
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$directory" --keep-directory-symlink --no-same-owner
    # Where scanners look for what an image has that no dpkg has installed.
    dpkg-deb --field "$package" > "$directory/var/lib/dpkg/status.d/$name"
done < packages
rm -rf "$chosen"
