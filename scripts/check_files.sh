#!/usr/bin/env bash
# Rules for tracked files that no other tool checks: length, no paths of one machine, clean ends.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
report() {  # report WHAT LINES: complains when LINES is not empty
  if [[ -n $2 ]]; then
    failed=1
    printf 'check_files: %s\n%s\n' "$1" "$2"
  fi
}

# Code of others is theirs to keep.
tracked() { git ls-files -z --cached --others --exclude-standard -- "$@" ':!third_party'; }

report 'past 500 lines, split by meaning' "$(
  tracked '*.cpp' '*.hpp' '*.c' '*.h' '*.cuh' '*.md' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' Makefile .ci/run |
    xargs -0 wc -l | awk '$1 > 500 && $2 != "total" { print $2 ": " $1 " lines" }')"

# A path below a home directory or a working folder means something on one machine only.
report 'a path of one machine' "$(
  tracked | xargs -0 grep -InE '(^|[^A-Za-z0-9_.>-])/(home|root|Users|work)/[A-Za-z0-9_.]' || true)"

report 'blanks at the end of a line, or a tab outside Makefile' "$(
  tracked ':!Makefile' ':!LICENSE' | xargs -0 grep -InE "[[:blank:]]\$|"$'\t' || true)"

# The seeds of the fuzzers are inputs, byte for byte.
report 'no newline at the end' "$(
  tracked ':!tests/fuzz/seeds' | while IFS= read -r -d '' file; do
    if [[ -s $file ]] && grep -Iq . "$file" && [[ -n $(tail -c 1 "$file") ]]; then echo "$file"; fi
  done)"

# Who runs what was chosen includes src/cuda/plan, which includes src/cuda/kernels (docs/design.md,
# "Layers"), not the other way.
report 'an include that points back' "$(
  tracked src/cuda/plan src/cuda/kernels |
    xargs -0 grep -nE '#include "cuda/(forward|backward|matmul)/' || true
  tracked src/cuda/kernels | xargs -0 grep -n '#include "cuda/plan/' || true)"

report 'a header of an operating system outside src/core/platform' "$(
  tracked 'src/*.[ch]pp' include ':!src/core/platform' ':!src/cuda/device' |
    xargs -0 grep -nE '#include <(dlfcn|fcntl|unistd|pthread|sched|link|windows|sys/[a-z_]+)\.h>' || true)"

# A child of fork() waits for ever for a static lock, or a value that is made with a lock, of another
# thread of its parent (src/core/fork_safe.hpp and first_made.hpp have those that are safe).
report 'a static variable that a child of fork() may wait for' "$(
  tracked 'src/*.[ch]pp' 'python/bindings/*.[ch]pp' |
    xargs -0 grep -nE 'static std::(shared_)?mutex|std::(call_once|once_flag)|static [^()]*= \*?new ' || true)"

# Names such as Plan.RunsInItsOwnPhase are those of TEST, TEST_F or TEST_P.
report 'docs/trust.md names tests that do not exist' "$(
  grep -ohE '[A-Z][A-Za-z0-9]*\.[A-Z][A-Za-z0-9]*' docs/trust.md | sort -u |
    comm -23 - <(grep -rhoE '^TEST(_F|_P)?\([A-Za-z0-9]+, *[A-Za-z0-9]+' tests |
      sed -E 's/^TEST(_F|_P)?\(([A-Za-z0-9]+), */\2./' | sort -u))"

# Examples are compiled and run. Blank lines and lines of comment may differ.
report 'C or C++ that a page shows and no example has' "$(
  python3 - README.md docs/*.md <<'END'
import pathlib, re, sys
def code(text):
    lines = [line.strip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("//"))
examples = [code(path.read_text()) for path in pathlib.Path("examples").rglob("*.c*")]
for page in sys.argv[1:]:
    for block in re.findall(r"```c(?:pp)?\n(.*?)```", pathlib.Path(page).read_text(), re.S):
        if not any(code(block) in example for example in examples):
            print(f"{page}: {block.splitlines()[0]} ...")
END
)"

# A link leads to a file and, past '#', to a heading of it. docs/cpu.md, "Roofline" names a page and
# words that a heading, or something in bold, begins with; comments do so too.
mapfile -d '' -t texts < <(tracked '*.md' '*.cpp' '*.hpp' '*.c' '*.h' '*.cuh' '*.cu' '*.py' '*.sh')
report 'a link, or a name of a section, that leads nowhere' "$(
  python3 - "${texts[@]}" <<'END'
import pathlib, re, sys
def titles(page):
    text = page.read_text()
    return re.findall(r"^#+ (.*)$", text, re.M) + re.findall(r"\*\*(.+?)\*\*", text, re.S)
def anchor(title):
    return re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).replace(" ", "-")
def lead_nowhere(file):
    text = file.read_text()
    if file.suffix == ".md":
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
        for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose):
            path, _, section = target.partition("#")
            page = file.parent / path if path else file
            if not page.exists() or section and section not in map(anchor, titles(page)):
                yield target
    flat = re.sub(r"\s*\n\s*(//|#)?\s*", " ", text)
    for path, section in re.findall(r'([\w/.-]+\.md)[)`]?,? \(?"([^"]+)"', flat):
        pages = [page for page in (file.parent / path, pathlib.Path(path)) if page.is_file()]
        if not any(title.startswith(section) for page in pages for title in titles(page)):
            yield f"{path}, {section}"
for name in sys.argv[1:]:
    for target in lead_nowhere(pathlib.Path(name)):
        print(f"{name}: {target}")
END
)"

# Names such as test_calls.py::test_many_threads are those of pytest.
report 'python/tests/README.md names tests that do not exist' "$(
  grep -ohE 'test_[a-z0-9_]+\.py(::test_[a-z0-9_]+)?' python/tests/README.md | sort -u |
    comm -23 - <({ grep -oE '^ *def test_[a-z0-9_]+' python/tests/test_*.py |
      sed -E 's#.*/(test_[a-z0-9_]+\.py): *def #\1::#'; (cd python/tests && printf '%s\n' test_*.py); } | sort -u))"

report 'a page about speed that is not what bench/results give' "$(PYTHONDONTWRITEBYTECODE=1 python3 bench/report.py --check 2>&1 || true)"

((failed == 0)) && echo "check_files: clean"
exit $failed
