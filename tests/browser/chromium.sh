#!/bin/sh
# Chromium for the browser tests, from Debian's packages: installed when there is none and this machine lets us.
# Without one the browser tests are skipped by name, so this never fails the test command itself.
set -u

# Debian's browser without windows is enough and takes less processor time; elsewhere the whole one.
if command -v chromium-headless-shell >/dev/null 2>&1 || command -v chromium >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "no chromium on the path and no apt-get to install it: the browser tests will be skipped" >&2
    exit 0
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        echo "no chromium on the path and no right to install it (apt-get install chromium): the browser tests will be skipped" >&2
        exit 0
    fi
    as_root="sudo -n"
fi
log=$(mktemp)
echo "==> installing chromium for the browser tests (half a minute, once)"
# The packages may be known under versions that the mirror no longer has, so the lists come first.
install() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends fonts-liberation "$1"
}
if ! { $as_root apt-get update && { install chromium-headless-shell || install chromium; }; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "chromium could not be installed: the browser tests will be skipped" >&2
fi
rm -f "$log"
