# Shared by the scripts of this folder; sourced after `set -eu`.
# Defines: top (the repository), sources (every .c and .h that is ours).

top=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$top"

skipped=77 # exit status of a check that could not run

# Tracked and new files; without git, every file outside build folders.
files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -co --exclude-standard | while IFS= read -r f; do
            [ ! -f "$f" ] || printf '%s\n' "$f"
        done
    else
        find . -type f ! -path './build*' ! -path './.git/*' ! -path './out/*' |
            sed 's|^\./||'
    fi | LC_ALL=C sort
}

sources() {
    files | grep -E '\.[ch]$' || true
}

skip() {
    echo "$*"
    exit "$skipped"
}
