"""Tables are read in every form; labels are names, numbers, sets or scores."""

import gzip

import numpy as np
import pyarrow
import pytest
import tensorflow_datasets as tfds
from pyarrow import parquet

from bert_jax.errors import ConfigError
from bert_jax.finetuning import tables


def write(path, text, **kwargs):
    path.write_bytes(text.encode(kwargs.get("encoding", "utf-8")))
    return path


def test_tsv_keeps_quotes_and_removes_a_byte_order_mark(tmp_path):
    text = '\ufeffsentence\tlabel\r\nhe said "no\t0\n\n"yes" it is\t1'
    path = write(tmp_path / "a.tsv", text)
    table = tables.read(f"tsv:{path}")
    assert table.columns == {
        "sentence": ['he said "no', '"yes" it is'],
        "label": ["0", "1"],
    }
    assert not table.dropped


def test_csv_fields_may_contain_commas_quotes_and_line_breaks(tmp_path):
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write('text,label\n"a, ""b""\nc",1\nplain,0\n')
    assert tables.read(f"csv:{path}").columns == {
        "text": ['a, "b"\nc', "plain"],
        "label": ["1", "0"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "text;label\na, b;1\nc;0\n",
        'sep=;\n"text";"label"\n"a, b";1\n"c";0\n',
        "sep=;\ntext;label,raw;label\na, b;;1\nc;;0\n",
        "sep=\t\ntext\tlabel\na, b\t1\nc\t0\n",
        '"text";"label";"a, b"\n"a, b";1;x\n"c";0;x\n',
        'text, label\n"a, b", "1"\nc, 0\n',
        '\n\n text ,label\n"a, b",1\n\nc,0\n',
        ',,text,label\n0,0,"a, b",1\n1,1,c,0\n',
        '"text","label"\n"a, b","1"\n"c","0"',
    ],
)
def test_other_forms_of_csv(tmp_path, text):
    table = tables.read(f"csv:{write(tmp_path / 'a.csv', text)}")
    assert table.column("text") == ["a, b", "c"]
    assert table.column("label") == ["1", "0"]


def test_several_columns_of_a_name_cannot_be_used(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\ta\n1\t2\t3")
    table = tables.read(f"tsv:{path}")
    assert table.column("b") == ["2"]
    with pytest.raises(ConfigError, match="a.tsv has several columns 'a'; rename all"):
        table.column("a")


def test_the_caller_may_name_the_columns(tmp_path):
    path = write(tmp_path / "a.tsv", "gj04\t1\t\tFine.\n")
    table = tables.read(f"tsv:{path}", ("source", "label", "star", "sentence"))
    assert table.column("sentence") == ["Fine."] and table.column("star") == [""]
    path = write(tmp_path / "a.csv", '"One; two\nthree, four",1\n')
    table = tables.read(f"csv:{path}", ("text", "label"))
    assert table.column("text") == ["One; two\nthree, four"]


def test_a_parquet_file_has_the_types_of_its_columns(tmp_path):
    columns = {"text": ["a", None], "label": [1, 0], "tags": [["x"], []]}
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns | {"text": [b"a", None]}), path)
    assert tables.read(f"parquet:{path}").columns == columns
    with pytest.raises(ConfigError, match="a Parquet file; .* read as parquet:PATH$"):
        tables.read(f"csv:{path}")
    path.write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="corrupt or not Parquet"):
        tables.read(f"parquet:{path}")


def test_keys_of_json_lines_may_differ(tmp_path):
    text = '{"t": "x", "n": NaN}\n\n{"t": "y", "m": ["a"]}\n{"n": 2, "t": null, "m": 3}'
    table = tables.read(f"jsonl:{write(tmp_path / 'a.jsonl', text)}")
    assert table.columns == {
        "t": ["x", "y", None],
        "n": [None, None, 2],
        "m": [None, ["a"], 3],
    }
    assert table.absent == {"n": 3, "m": 1}


def test_lone_surrogates_in_json_are_replaced(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"t": "a\\ud83d", "c": [["\\udc00"]], "n": 1}')
    found = tables.read(f"jsonl:{path}").columns
    assert found == {"t": ["a?"], "c": [[["?"]]], "n": [1]}


def test_a_few_malformed_lines_are_dropped_and_counted(tmp_path):
    lines = ["a\tb"] + ["x\t1"] * 200 + ["broken", "x\ty\tz"]
    path = write(tmp_path / "a.tsv", "\n".join(lines))
    table = tables.read(f"tsv:{path}")
    assert len(table.column("a")) == 200 and table.dropped == [202, 203]
    path = write(tmp_path / "a.tsv", "\n".join(lines[:20] + lines[-2:]))
    with pytest.raises(
        ConfigError, match=r"a.tsv:21 has 1 columns, but .* 2 column names \(a, b\)"
    ):
        tables.read(f"tsv:{path}")


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("tsv", "", "has no rows"),
        ("tsv", "a\tb\n", "has no rows"),
        ("csv", 'a,b\nx,1\n"x,1\ny,1\n', "a.csv:3: unexpected end of data in the row"),
        ("csv", 'a,b\n"x,1\n"y",1\n', "a.csv:2: ',' expected .* close its quotes,"),
        ("csv", 'a,b\n\n"x"y,1\n', r"a.csv:3: .*, and write a quote inside .* twice"),
        ("jsonl", '{"a": 1}\n[2]\n', "a.jsonl:2 is list, not an object; write one"),
        ("jsonl", '[\n{"a": 1},\n', "a.jsonl:1 is .* without a list around them"),
        ("jsonl", "", "has no rows"),
    ],
)
def test_invalid_files_are_errors(name, text, message, tmp_path):
    path = write(tmp_path / f"a.{name}", text)
    with pytest.raises(ConfigError, match=message):
        tables.read(f"{name}:{path}")


def test_invalid_bytes_and_specs_are_errors(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\tb\nx\t1\ncaf\xe9\t2\n")
    with pytest.raises(ConfigError, match="a.tsv:3"):
        tables.read(f"tsv:{path}")
    with pytest.raises(ConfigError, match="begin with one of tsv:, csv:"):
        tables.read("train.tsv")
    with pytest.raises(ConfigError, match="nowhere.tsv"):
        tables.read("tsv:nowhere.tsv")
    with pytest.raises(ConfigError, match=r"('a',).*; set config.data.header=\(\)"):
        tables.read("jsonl:a", ("a",))
    path.write_text("a \tb\nx\ty\n")
    with pytest.raises(ConfigError, match="a.tsv:1 has the names of config.data.head"):
        tables.read(f"tsv:{path}", ("a", "b"))


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        (
            "config.task.text",
            "sentense",
            "config.task.text='sentense': tsv:a.tsv has no column 'sentense'; its"
            " columns are sentence, label; the nearest is 'sentence'",
        ),
        (
            "config.task.index",
            "id",
            "config.task.index='id': tsv:a.tsv has no column 'id'; its columns are"
            " sentence, label; if the first line of all files is data, name the columns"
            " in config.data.header; tsv: is for tabs between columns, and csv: for"
            " commas",
        ),
        ("", "id", "tsv:a.tsv has no column 'id'; its columns are sentence, label"),
    ],
)
def test_a_missing_column_is_an_error(key, name, message):
    table = tables.Table("tsv:a.tsv", {"sentence": ["x"], "label": ["1"]})
    with pytest.raises(ConfigError) as error:
        table.column(name, key)
    assert str(error.value) == message


class TinyBertLabels(tfds.core.GeneratorBasedBuilder):
    """A dataset registered under the name tiny_bert_labels."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "text": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["no", "yes"]),
            "parts": tfds.features.Sequence(tfds.features.Text()),
            "score": tfds.features.Scalar(np.float32),
            "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B"])),
            "answers": tfds.features.Sequence(
                {"text": tfds.features.Text(), "answer_start": np.int32}
            ),
        }
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples([0, 1]), "test": self._hidden()}

    def _generate_examples(self, labels):
        for i, label in enumerate(labels):
            yield i, {"text": f"Caf\u00e9 {i}", "label": label} | self.more

    def _hidden(self):
        yield 0, {"text": "Hidden", "label": -1} | self.more

    more = {"parts": ["a", "b"], "score": 0.5, "tags": [1, 0]}
    more |= {"answers": [{"text": "caf\u00e9", "answer_start": 3}]}


def test_tfds_classes_are_converted_to_names(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    table = tables.read("tfds:tiny_bert_labels:train")
    assert sorted(zip(table.column("text"), table.column("label"), strict=True)) == [
        ("Caf\u00e9 0", "no"),
        ("Caf\u00e9 1", "yes"),
    ]
    assert table.column("parts")[0] == ["a", "b"] and table.column("score")[0] == 0.5
    assert table.column("tags")[0] == ["B", "O"]
    answers = {"text": ["caf\u00e9"], "answer_start": [3]}
    assert table.column("answers")[0] == answers
    assert tables.read("tfds:tiny_bert_labels:test").column("label") == [""]
    part = tables.read("tfds:tiny_bert_labels:1.0.0:train[:50%]")
    assert part.column("text") == table.column("text")[:1]
    with pytest.raises(ConfigError, match="has no split 'dev'; use one of"):
        tables.read("tfds:tiny_bert_labels:dev")
    with pytest.raises(ConfigError, match="TensorFlow Datasets has no 'nothing_such'"):
        tables.read("tfds:nothing_such:train")
    with pytest.raises(ConfigError, match="names no split; .* tfds:glue:train"):
        tables.read("tfds:glue")


NAMES = ("negative", "positive")
KEY = "config.task.labels"


def classes(values, names=NAMES, spec="dev", read=tables.classes):
    return read(tables.Table(spec, {"x": values}), "x", names, KEY)


def class_sets(values):
    return classes(values, read=tables.class_sets)


def test_classes_by_name_or_number():
    found = classes(["positive", "0", " negative", 1])
    assert found.dtype == np.int32 and found.tolist() == [1, 0, 0, 1]
    # Names take precedence over class numbers.
    assert classes(["1", "0"], ("1", "0")).tolist() == [0, 1]


def test_the_error_for_an_unknown_label_names_the_nearest():
    with pytest.raises(ConfigError) as error:
        classes(["0", "postive"], spec="tsv:dev.tsv")
    assert str(error.value) == (
        "tsv:dev.tsv, example 2, has the label 'postive', which is not in"
        " config.task.labels (negative, positive, or 0 to 1); the nearest is"
        " 'positive'; correct it, or extend config.task.labels"
    )
    # No name is near "2".
    with pytest.raises(
        ConfigError, match=r"label '2', .*, positive, or 0 to 1\); correct it, or"
    ):
        classes(["2"])


def test_sets_of_classes():
    values = ["0,1", "positive", "", ["negative"], []]
    found = class_sets(values)
    assert found.tolist() == [[1, 1], [0, 1], [0, 0], [1, 0], [0, 0]]
    assert found.dtype == np.float32
    with pytest.raises(ConfigError, match="example 1, has the label 'x'"):
        class_sets(["0,x"])
    with pytest.raises(ConfigError, match="a 0 or 1 for each class; list the names"):
        class_sets([[0, 1], [1, 0]])


def test_scores():
    def scores(*values):
        return tables.scores(tables.Table("dev", {"x": values}), "x", "")

    assert scores("3.25", 5).dtype == np.float32 and scores("3.25", 5)[0] == 3.25
    for wrong in ("much", "nan", None, "", "1e39"):
        with pytest.raises(ConfigError, match="^dev, example 2, has .* in the column"):
            scores("1", wrong)


def test_names_are_sorted_as_numbers_if_all_are_numbers():
    assert tables.names_in(["10", "9", "9"]) == ("9", "10")
    assert tables.names_in(["1.0", "1", "01"]) == ("01", "1", "1.0")
    assert tables.names_in(["b", "a", "10", "9"]) == ("10", "9", "a", "b")


@pytest.mark.parametrize(
    "value, expected",
    [
        ("joy, anger , ", ["joy", "anger"]),
        ([" joy", 3], ["joy", "3"]),
        ("['joy', 'my anger']", ["joy", "my anger"]),
        (' ["joy", 3] ', ["joy", "3"]),
        ("[]", []),
        ("", []),
        (None, []),
        ("(sad), joy", ["(sad)", "joy"]),
    ],
)
def test_lists_and_text_with_commas_are_split(value, expected):
    assert tables.parts(value) == expected


NO_LIST = "^has the labels .* which are not a list"
VECTOR = "^has the labels .* a 0 or 1 for each class; list"
NO_CLASS = "^has the label .* a class is a text or a number"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *[(x, NO_LIST) for x in ("['a' 'b']", "[a, b]", "['a'", "{'a', 'b'}", "[1 2]")],
        *[(value, VECTOR) for value in ([0, 1, 1], [0, 0], "1,0,0", "[1, 1]")],
        *[([value], NO_CLASS) for value in (["a"], {"a": 1}, "['a', 'b']", "[]")],
    ],
)
def test_invalid_sets_of_classes_are_errors(value, message):
    with pytest.raises(ValueError, match=message):
        tables.parts(value)
    if message == NO_CLASS:
        with pytest.raises(
            ConfigError, match=message.replace("^", "^dev, example 1, ")
        ):
            classes(value)


def test_values_without_a_label_are_no_class_unless_they_are_named():
    values = ["negative", "-", None, "", " ", "-1", -1, "NaN", "null", "1"]
    found = classes(values)
    assert found.tolist() == [0, -1, -1, -1, -1, -1, -1, -1, -1, 1]
    found = classes(["-1", "0", "-"], ("-1", "0", "-"))
    assert found.tolist() == [0, 1, 2]


def test_class_numbers_are_not_accepted_if_names_are_numbers():
    names = ("1", "3", "5")
    assert classes(["5", "1"], names).tolist() == [2, 0]
    for names in (("1", "3", "5"), ("-1", "1"), ("0.5", "1.5")):
        with pytest.raises(ConfigError, match="has the label '0'"):
            classes(["0"], names)
