"""A cloud made of fakes: executables on PATH that write down how they were called.

`Cloud` copies launch/ and configs/ into a clone, puts the fakes first on PATH and runs
launchers there. What a fake answers is told by `reply(pattern, ...)`: a sequence of
answers for calls whose command line matches, the last of which stays.
"""

import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import subprocess

from tests.commands import ROOT

# Programs that would reach out of the machine, or need a cluster or another system.
PROGRAMS = (
    "gcloud kubectl docker git tar sky xpk sbatch srun scancel squeue sacct scontrol"
    " sudo systemctl mountpoint curl lsb_release"
).split()

# In bash: some tests make hundreds of calls.
FAKE = r"""#!/usr/bin/env bash
line="["
for word in "${0##*/}" "$@"; do
  word=${word//\\/\\\\}
  line+="\"${word//\"/\\\"}\","
done
exec 9>>"$FAKES/lock"
flock 9
printf '%s]\n' "${line%,}" >>"$FAKES/calls"
words="${0##*/} $*"
for rule in "$FAKES"/rules/*/; do
  [[ -e $rule/pattern ]] || continue
  IFS= read -r pattern <"$rule/pattern"
  [[ $words =~ $pattern ]] || continue
  read -r count <"$rule/count"
  echo $((count + 1)) >"$rule/count"
  while [[ ! -e $rule/$count ]]; do ((count--)); done
  break
done
exec 9>&-
[[ ${1-} != tee ]] || cat >/dev/null
[[ -n ${count-} ]] || exit 0
read -r -d "" out <"$rule/$count.out"
read -r -d "" err <"$rule/$count.err"
read -r code <"$rule/$count"
[[ -z $out ]] || printf '%s\n' "$out"
[[ -z $err ]] || printf '%s\n' "$err" >&2
exit "$code"
"""


@dataclasses.dataclass
class Answer:
    out: str = ""
    err: str = ""
    code: int = 0


class Cloud:
    """Launchers in a clone of their own, with fakes instead of every cloud."""

    def __init__(self, directory: pathlib.Path):
        self.clone = directory / "clone"
        self.fakes = directory / "fakes"
        self.home = directory / "home"
        for part in ("launch", "configs"):
            shutil.copytree(ROOT / part, self.clone / part)
        (self.fakes / "bin").mkdir(parents=True)
        (self.fakes / "rules").mkdir()
        self.home.mkdir()
        for program in PROGRAMS:
            self.add_program(program, FAKE)
        self.env = {
            "PATH": f"{self.fakes / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "FAKES": str(self.fakes),
            "BERT_JAX_CHECKED": "yes",  # test_check_training.py takes it away
            "BERT_JAX_POLL": "0.01",
            "BERT_JAX_FIRST_DELAY": "0.01",
            "BERT_JAX_MAX_DELAY": "0.02",
        }

    def add_program(self, name: str, text: str) -> None:
        path = self.fakes / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def reply(self, pattern: str, *answers: Answer | str) -> None:
        """Answers calls that match; of several rules, the one told last."""
        number = len(list((self.fakes / "rules").iterdir()))
        rule = self.fakes / "rules" / f"{999 - number:03}"
        rule.mkdir()
        (rule / "pattern").write_text(pattern + "\n")
        (rule / "count").write_text("0\n")
        for i, answer in enumerate(answers):
            if isinstance(answer, str):
                answer = Answer(answer)
            (rule / f"{i}.out").write_text(answer.out + "\n" if answer.out else "")
            (rule / f"{i}.err").write_text(answer.err + "\n" if answer.err else "")
            (rule / f"{i}").write_text(f"{answer.code}\n")

    def start(self, script: str, *args: str, **env: str) -> subprocess.Popen:
        return subprocess.Popen(
            [str(self.clone / "launch" / script), *args],
            cwd=self.clone,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *args: str, code: int = 0, **env: str):
        """Runs a launcher, which must end with `code`."""
        process = self.start(script, *args, **env)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(args, code, out, err)

    def calls(self, pattern: str = "") -> list[list[str]]:
        """Returns the command lines that fakes were called with, in order."""
        path = self.fakes / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [words for words in found if re.search(pattern, " ".join(words))]

    def printed(self, output: str) -> list[list[str]]:
        """Returns the command lines of a dry run that would have gone to fakes."""
        lines = [shlex.split(line) for line in output.splitlines()]
        return [words for words in lines if words[0] in PROGRAMS]


def words_in_order(calls: list[list[str]], *patterns: str) -> bool:
    """Returns whether calls that match the patterns occur in this order."""
    remaining = iter(" ".join(words) for words in calls)
    return all(any(re.search(p, line) for line in remaining) for p in patterns)
