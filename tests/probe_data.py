"""Small data for probes, in the words of tests.commands.write_text."""

import json
import pathlib
from collections.abc import Sequence

WORDS = "river stone garden letter captain winter engine window market song".split()


def write_blimp(
    directory: pathlib.Path, num_pairs: int = 12, words: Sequence[str] = WORDS
) -> None:
    """Writes two paradigms, whose bad sentences have their words in reverse order."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, term in enumerate(("order", "agreement")):
        rows = []
        for i in range(num_pairs):
            others = words[i % 10], words[(i + 1 + number) % 10]
            good = f"The {others[0]} crosses the {others[1]}."
            bad = " ".join(reversed(good.split()))
            row = {"sentence_good": good, "sentence_bad": bad}
            rows.append(row | {"linguistics_term": term, "pairID": str(i)})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / f"paradigm_{number}.jsonl").write_text(text)


def write_stsb(directory: pathlib.Path) -> None:
    """Writes the dev set in the format of GLUE; quotes and blank genres as there."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = ["index\tgenre\tsentence1\tsentence2\tscore"]
    for i in range(20):
        a = f'The "{WORDS[i % 10]} sells the {WORDS[(i + 1) % 10]}'
        b = f"The {WORDS[i % 10]} paints the {WORDS[(i + 1 + i % 3) % 10]}"
        lines.append(f"{i}\t\t{a}\t{b}\t{5 - i % 6:.3f}")
    (directory / "dev.tsv").write_text("\n".join(lines) + "\n")


def specs(directory: pathlib.Path) -> tuple[str, str]:
    """Writes both and returns their specs."""
    write_blimp(directory / "blimp")
    write_stsb(directory / "stsb")
    return f"blimp:{directory}/blimp", f"stsb:{directory}/stsb"
