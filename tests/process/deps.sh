#!/bin/sh
# scripts/deps must be silent and need nothing where all is installed, and elsewhere than on Debian say what it needs.
. "$SOURCE/tests/process/common"

# No sudo, no apt-get that could run, no network: with everything there it must not want them.
if command -v dpkg-query >/dev/null; then
    printf '#!/bin/sh\necho "$0 was called"\nexit 1\n' >"$work/apt-get"
    chmod +x "$work/apt-get"
    cp "$work/apt-get" "$work/sudo"
    output=$(PATH="$work:$PATH" "$SOURCE/scripts/deps" 2>&1) || {
        case $output in Installing:*) echo "not everything is installed here: $output"; exit 77 ;; esac
        echo "failed: $output"
        exit 1
    }
    [ -z "$output" ] || { echo "not silent: $output"; exit 1; }
fi

mkdir "$work/bin"
for tool in sh; do ln -s "$(command -v $tool)" "$work/bin/"; done
! output=$(PATH="$work/bin" "$SOURCE/scripts/deps" 2>&1) || { echo "passed with nothing installed"; exit 1; }
for need in "not Debian" cmake libuv libdnnl-dev; do
    case $output in *"$need"*) ;; *) echo "does not name $need: $output"; exit 1 ;; esac
done
