# shellcheck shell=bash
# Shared by the scripts of this folder: sourced, never run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '%s\n' "$*" >&2; }

die() {
	say "$(basename "$0"): $*"
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# modules prints the folder of every module in the workspace, one a line.
modules() { go list -m -f '{{.Dir}}'; }

# module_patterns prints what the go command and the linters call "every package": ./pkg/... and so on.
module_patterns() {
	local dir
	modules | while read -r dir; do
		printf './%s/...\n' "${dir#"$root"/}"
	done
}

# is_postrider says whether a process is a running postrider. Not every system has ps, not every system has /proc.
is_postrider() {
	if [[ -r /proc/$1/cmdline ]]; then
		grep -qa postrider "/proc/$1/cmdline"
	else
		ps -o command= -p "$1" 2>/dev/null | grep -q postrider
	fi
}
