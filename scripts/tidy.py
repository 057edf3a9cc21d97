#!/usr/bin/env python3
"""clang-tidy over the project's sources, all cores.

  scripts/tidy.py BUILD [FILE...]    BUILD: a configured build folder; FILE: only these
  scripts/tidy.py BUILD --changed    what changed in the three hours before the newest commit:
                                     sources, and of each header one source that includes it; all
                                     where the history is shorter

Reading the standard library's headers is nearly all of the work, so files that are compiled alike
are read together, as one file that includes them. A name that two of them define in an unnamed
namespace would be an error: a first pass of one quick check tells which files go to a later group.
A file in which something is found is read again by itself, and only what that says counts. A
constant that nothing uses is told only in a file read by itself, so GCC warns of those
(-Wunused-const-variable).
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES_OF_A_GROUP = 24  # past which a group takes longer than its share of the headers saves
# clang-tidy 14 does not start without a check; this one looks at what is included alone.
QUICK = "-*,clang-diagnostic-*,readability-duplicate-include"


def run_tidy(source, command, *options):
    """What clang-tidy prints of a file compiled by that command, and whether it found anything."""
    without_precompiled = re.sub(r" -include \S+", "", command)
    flags = shlex.split(without_precompiled)[1:]
    done = subprocess.run(
        ["clang-tidy", "--quiet", "--config-file=.clang-tidy", *options, source, "--", *flags],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if done.returncode != 0 and "error:" not in done.stdout:
        raise RuntimeError(f"clang-tidy failed on {source}: {done.stderr}")
    return done.stdout, done.returncode != 0


def told_in(output):
    """The files of which an error is told."""
    return {os.path.realpath(path) for path in re.findall(r"^([^\s:]+):\d+:\d+: error:", output, re.M)}


def read_together(files, command, *options):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "all.cpp")
        source.write_text("".join(f'#include "{file}"  // NOLINT\n' for file in files))
        return run_tidy(str(source), command, *options)


def check(files, command):
    """What is wrong with these files."""
    if not files:
        return ""
    if len(files) == 1:
        output, wrong = run_tidy(files[0], command)
        return output if wrong else ""
    output, wrong = read_together(
        files, command, f"--checks={QUICK}", "--extra-arg=-ferror-limit=0"
    )
    if not wrong:
        return check_together(files, command)
    told = told_in(output)
    later = [file for file in files if file in told] or files[len(files) // 2 :]
    first = [file for file in files if file not in later] or files[:1]
    # A name of a header may be one of the files that are left, too.
    read = check_together if told <= set(files) else check
    return read(first, command) + check([file for file in files if file not in first], command)


def check_together(files, command):
    """What is wrong with files that share no name."""
    if len(files) == 1:
        return check(files, command)
    output, wrong = read_together(files, command)
    if not wrong:
        return ""
    told = told_in(output)
    alone = [file for file in files if file in told] or files
    return "".join(check([file], command) for file in alone)


def including(text):
    """The first source with this text, none where there is none."""
    found = git("grep", "-lF", text, "--", "*.cpp")
    return found[:1]


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE)
    return done.stdout.splitlines()


def changed():
    """The sources to read, None for all."""
    newest = int(git("log", "-1", "--format=%ct")[0])
    base = git("rev-list", "-1", f"--before={newest - 3 * 60 * 60}", "HEAD")
    if not base:
        return None
    sources = []
    for file in git(
        "diff", "--name-only", "--diff-filter=d", base[0], "--", "*.cpp", "*.hpp", "*.h"
    ):
        if file.endswith(".cpp"):
            sources.append(file)
        elif file.startswith("include/"):
            sources += including(file.removeprefix("include/"))
        else:
            sources += including(f'"{file.partition("/")[2]}"')
    return {str(ROOT / file) for file in sources}


def compiled(build):
    """The files that the build compiles, each with its command, also those compiled as one file."""
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        command = entry["command"].split(" -o ")[0]
        files = [entry["file"]]
        if re.search(r"/unity_\d+_cxx\.cxx$", files[0]):
            files = re.findall(r'#include "([^"]+)"', pathlib.Path(files[0]).read_text())
        yield from ((file, command) for file in files)


def groups(build, wanted):
    """Lists of files with the command that compiles them, the longest first."""
    alike = {}
    seen = set()
    for file, command in compiled(build):
        ours = file.startswith(f"{ROOT}/") and not file.startswith(f"{ROOT}/build")
        if not ours or file in seen or (wanted is not None and file not in wanted):
            continue
        seen.add(file)
        alike.setdefault(command, []).append(file)
    parts = [
        (files[at : at + FILES_OF_A_GROUP], command)
        for command, files in alike.items()
        for at in range(0, len(files), FILES_OF_A_GROUP)
    ]
    return sorted(parts, key=lambda part: -len(part[0]))


def main(build, *files):
    if files == ("--changed",):
        wanted = changed()
    else:
        wanted = {os.path.realpath(file) for file in files} or None
    parts = groups(build, wanted)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        wrong = "".join(pool.map(lambda part: check(*part), parts))
    print(wrong, end="")
    print(f"clang-tidy read {sum(len(files) for files, _ in parts)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
