"""The steps by which tools/release.py makes a release: versions, locks, packages, images, bills of materials."""
