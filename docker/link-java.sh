#!/bin/sh
# Makes a Java runtime of some modules, without what is for windows, pictures and sound: link-java.sh DIRECTORY MODULES
set -eu
home=usr/lib/jvm/java-17-openjdk
machine=$(dpkg --print-architecture)
"/machine/$home-$machine/bin/jlink" --module-path "/target/$home-$TARGETARCH/jmods" --output "$1" \
    --no-header-files --no-man-pages --compress=2 --strip-java-debug-attributes --exclude-files "$(
        for library in awt awt_headless awt_xawt fontmanager freetype javajpeg jawt jsound lcms mlib_image splashscreen; do
            printf 'glob:**/lib%s.so,' "$library"
        done
    )glob:**/psfont*" --add-modules "$2"
