#!/usr/bin/env bash
# Builds the images of engine and operator with docker, podman or buildah, whichever there is; $BUILDER chooses.
#
#     tools/images.sh [engine|engine-tables|engine-spark|operator ...]
#
# engine-tables is the engine's image with one layer more, for joins with Delta or Iceberg tables, and engine-spark is that one with another layer, for
# joins with spark as source or sink. The image that one begins with is built first, unless ENGINE or TABLES names one that is there, so that both have
# the same layers.
#
# CONTEXT: a directory with the Dockerfiles of other images, and all that they copy.
# TAG: the tag (by default the project's version). REGISTRY: a prefix such as registry.example.com/team/. PLATFORM: linux/arm64, say, for another
# processor than this machine's. BASE: another Debian 12 to build in; nothing of it gets into the image. PIP_CERT: a bundle of certificates that pip
# must trust while the image is built; it does not stay in the image. SOURCE_DATE_EPOCH: what the image's files are dated, in seconds since 1970.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
builder=${BUILDER:-}
for candidate in docker podman buildah; do
    # A docker whose daemon does not answer builds nothing.
    [[ -n $builder ]] || ! "$candidate" info >/dev/null 2>&1 || builder=$candidate
done
[[ -n $builder ]] || { echo "images: no docker, podman or buildah works on this machine; install one" >&2; exit 1; }

arguments=()
[[ -z ${BASE:-} ]] || arguments+=(--build-arg "BASE=$BASE")
if [[ -n ${PIP_CERT:-} ]]; then
    [[ $builder != docker ]] || { echo "images: docker build mounts no files; use podman or buildah with PIP_CERT" >&2; exit 1; }
    arguments+=(--volume "$(realpath "$PIP_CERT"):/run/certificates.crt:ro" --build-arg PIP_CERT=/run/certificates.crt)
fi
machine=linux/$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
arguments+=(--platform "${PLATFORM:-$machine}")
[[ -z ${START:-} ]] || arguments+=(--build-arg "START=$START")
if [[ -n ${SOURCE_DATE_EPOCH:-} ]]; then
    arguments+=(--build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
    [[ $builder == docker ]] || arguments+=(--timestamp "$SOURCE_DATE_EPOCH")
fi
# In a chroot, buildah needs neither a network of its own nor a runtime for containers. It keeps layers only when asked.
[[ $builder != buildah ]] || arguments+=(--isolation chroot --layers)
[[ -z ${AGAIN:-} ]] || arguments+=(--no-cache)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# buildah before 1.30 knows this variable in no FROM; and where a FROM says no platform, it looks for images of the one before.
edits="s|\${BUILDPLATFORM}|$machine|"
[[ $builder == docker ]] || edits+="; s#^FROM \(\${ENGINE}\|\${TABLES}\)#FROM --platform=${PLATFORM:-$machine} \1#"

# One image, of its Dockerfile's target: build IMAGE DOCKERFILE [OPTION ...]
build() {
    local image=$1 file=$2
    shift 2
    sed "$edits" "${CONTEXT:-docker}/$file.Dockerfile" > "$scratch/$file.Dockerfile"
    "$builder" build "${arguments[@]}" "$@" -f "$scratch/$file.Dockerfile" -t "$(tag "$image")" "${CONTEXT:-.}"
    tag "$image"
}
tag() { echo "${REGISTRY:-}streamjoin-$1:${TAG:-$version}"; }
# An image that is another one and a layer more, of which an argument of the Dockerfile has the name: larger IMAGE TARGET ARGUMENT OTHER
larger() {
    local begins=${!3:-}
    if [[ $builder == docker ]]; then
        # It has the other's layers in its cache, and may not see the images of this machine.
        build "$1" engine --target "$2"
    else
        if [[ -z $begins ]]; then
            make "$4"
            begins=$(tag "$4")
        fi
        [[ $begins == */* ]] || begins=localhost/$begins
        build "$1" engine --target "$2" --build-arg "$3=$begins"
    fi
}
made=
# One image, once.
make() {
    case "$made" in *" $1 "*) return ;; esac
    made+=" $1 "
    case $1 in
        engine) build engine engine --target engine ;;
        engine-tables) larger engine-tables tables ENGINE engine ;;
        engine-spark) larger engine-spark spark TABLES engine-tables ;;
        *) build "$1" "$1" ;;
    esac
}

(($#)) || set -- engine engine-tables engine-spark operator
for image in "$@"; do make "$image"; done
