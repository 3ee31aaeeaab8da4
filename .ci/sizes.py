"""Compares the sizes of the project with sizes.toml, above which none may rise.

    python .ci/sizes.py [--write [--buys=TEXT]]

--write writes the numbers of this checkout; --buys says what a rise gives to users.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
FILE = pathlib.Path(__file__).with_suffix(".toml")
FOLDERS = ("bert_jax", "tests", "benchmarks")
TRAIN = "import sys, bert_jax.train; [print(getattr(m, '__file__', 0)) for n, m in"
TRAIN += " sorted(sys.modules.items()) if n.partition('.')[0] == 'bert_jax']"


def sizes() -> dict[str, int]:
    """Returns the sizes of this checkout by their name in sizes.toml."""
    listed = subprocess.check_output([sys.executable, "-c", TRAIN], cwd=ROOT, text=True)
    keys = (ROOT / "docs/reference.md").read_text().partition("### config.metric")[0]
    keys = re.sub(r"## Differences.*?\n## ", "", keys, flags=re.S)
    return {
        **{x: num_lines(ROOT.glob(f"{x}/**/*.py")) for x in FOLDERS},
        "train_imports": num_lines(map(pathlib.Path, listed.split())),
        "config_keys": len(re.findall(r"^\| `", keys, re.M)),
        "pages": len([*ROOT.glob("docs/*.md"), *ROOT.glob("launch/*.md")]),
    }


def num_lines(paths) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def risen(found: dict[str, int], text: str) -> dict[str, int]:
    """Returns the sizes above their number in the text of sizes.toml."""
    limits = tomllib.loads(text)
    return {name: size for name, size in found.items() if size > limits.get(name, 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--buys", default="", metavar="TEXT")
    args = parser.parse_args()
    found, text = sizes(), FILE.read_text()
    rises, lines = risen(found, text), []
    if rises and not (args.write and args.buys):
        sys.exit(f"{rises} are above sizes.toml; lower them, or --write --buys=TEXT")
    for line in text.splitlines():
        name, _, rest = line.partition(" = ")
        comment = f"  # {args.buys}" if name in rises else rest.lstrip("0123456789")
        lines.append(f"{name} = {found[name]}{comment}" if name in found else line)
    if args.write:
        FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
