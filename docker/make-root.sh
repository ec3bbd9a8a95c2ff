#!/bin/sh
# Completes a root file system of unpacked packages, as their scripts would: make-root.sh DIRECTORY
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"

# Of documentation, licences alone stay.
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -type l ! -exec test -e {} \; -delete
find usr/share/doc -type d -empty -delete
rm -rf usr/lib/*/cmake usr/lib/*/pkgconfig usr/share/man usr/share/info usr/share/lintian usr/share/bug usr/share/menu usr/share/doc-base usr/share/pixmaps usr/share/applications \
    usr/share/python3 usr/share/binfmts usr/share/gcc usr/share/gdb usr/share/initramfs-tools usr/share/base-files usr/share/locale etc/bash_completion.d
# Character sets other than UTF-8 and those that libc has itself: nothing here reads them.
rm -rf usr/lib/*/gconv usr/lib/*/audit
# Parts of Python that a server does not load, and those whose libraries are not here.
stdlib=usr/lib/python3.11
rm -rf "$stdlib"/distutils "$stdlib"/lib2to3 "$stdlib"/ensurepip "$stdlib"/idlelib "$stdlib"/pydoc_data "$stdlib"/turtledemo "$stdlib"/tkinter \
    "$stdlib"/test "$stdlib"/config-*
rm -f "$stdlib"/turtle.py "$stdlib"/lib-dynload/_codecs_*.so "$stdlib"/lib-dynload/*test*.so "$stdlib"/lib-dynload/xx*.so
for module in _curses _curses_panel _dbm audioop nis ossaudiodev readline _sqlite3; do
    rm -f "$stdlib"/lib-dynload/"$module".*.so
done

# What ca-certificates' scripts do.
mkdir -p etc/ssl/certs
find usr/share/ca-certificates -name '*.crt' | sort | xargs cat > etc/ssl/certs/ca-certificates.crt
ln -sf certs/ca-certificates.crt etc/ssl/cert.pem

if [ -x bin/busybox ]; then
    # By name, for that of another processor cannot be asked. Spark's scripts take dirname, ps and the like.
    for name in sh ls cat cp mv rm ln mkdir rmdir echo dirname basename readlink realpath env id tr sed grep awk sort head tail cut wc date sleep kill ps \
        tar gzip base64 dd df du find xargs touch chmod test '[' true false uname hostname nproc ip nslookup wget vi top; do
        [ -e "usr/bin/$name" ] || ln -s busybox "usr/bin/$name"
    done
fi

mkdir -p etc tmp var/tmp var/log run proc sys dev root var/data
rm -rf var/lib/apt var/cache etc/apt boot home media mnt srv opt
chmod 1777 tmp var/tmp
cat > etc/passwd <<EOF
root:x:0:0:root:/root:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
streamjoin:x:10001:10001::/tmp:/usr/sbin/nologin
EOF
cat > etc/group <<EOF
root:x:0:
nogroup:x:65534:
streamjoin:x:10001:
EOF
printf 'passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n' > etc/nsswitch.conf
# A virtual environment's python leads here.
[ -x usr/bin/python3.11 ]
"$here/sourceless.sh" "$1/$stdlib" -s "$1" -p /
