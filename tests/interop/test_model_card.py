"""Tests of the README.md of an export."""

import dataclasses
import json
import shutil

from bert_jax.interop import model_card


def write(opened, workdir, directory, format_name="huggingface", dtype="float32"):
    model_card.write(
        directory,
        opened.config,
        opened.corpus,
        str(workdir),
        opened.step,
        format_name,
        dtype,
    )
    return (directory / "README.md").read_text()


def test_card_has_config_data_and_metrics(newest, trained, tmp_path):
    card = write(newest, trained / "run", tmp_path)
    line = [json.loads(x) for x in (trained / "run/metrics.jsonl").open()][-1]
    assert f"| eval_masked_lm_loss | {line['eval_masked_lm_loss']:.6g} |" in card
    assert f"| eval_num_sequences | {line['eval_num_sequences']:.0f} |" in card
    manifest = json.loads((trained / "corpus/manifest.json").read_text())
    assert manifest["sha256"] in card
    assert f"`text:{trained}/*.txt`" in card and "120 tokens, lower-cased" in card
    block = card.split("```json\n")[1].split("```")[0]
    assert json.loads(block) == json.loads((trained / "run/config.json").read_text())


def test_card_of_averaged_weights_says_so(newest, trained, tmp_path):
    optimizer = dataclasses.replace(newest.config.optimizer, average_steps=5)
    config = dataclasses.replace(newest.config, optimizer=optimizer)
    card = write(dataclasses.replace(newest, config=config), trained / "run", tmp_path)
    assert "The weights are the mean of those after its last 5 steps." in card


def test_card_starts_with_front_matter(newest, trained, tmp_path):
    card = write(newest, trained / "run", tmp_path)
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n")
    assert "library_name" not in write(newest, trained / "run", tmp_path, "google")


def test_metrics_of_later_steps_are_not_in_the_card(newest, trained, tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    shutil.copy(trained / "run/metrics.jsonl", workdir)
    with (workdir / "metrics.jsonl").open("a") as file:
        later = {"step": 21, "eval_masked_lm_loss": 0.125}
        file.write(json.dumps(later) + "\n")
    assert "0.1250" not in write(newest, workdir, tmp_path)
    (workdir / "metrics.jsonl").unlink()
    assert "There was no evaluation up to this step." in write(
        newest, workdir, tmp_path
    )


def test_card_lists_limitations_of_the_model(newest, trained, tmp_path):
    def changed(**changes):
        config = dataclasses.replace(newest.config, **changes)
        return dataclasses.replace(newest, config=config)

    data = dataclasses.replace(
        newest.config.data, next_sentence=False, sources=("a|b",)
    )
    card = write(changed(data=data, init_from="other"), trained / "run", tmp_path)
    assert "next-sentence head are untrained" in card and "`a&#124;b`" in card
    assert "from the weights in `other`" in card and "random weights" not in card
    card = write(newest, trained / "run", tmp_path, "google")
    assert "--do_lower_case=True" in card and "untrained" not in card
    assert "random weights" in card and "erf form" not in card
    model = dataclasses.replace(newest.config.model, hidden_act="gelu")
    card = write(changed(model=model), "none", tmp_path, "google", "bfloat16")
    assert "The weights here are bfloat16." in card
    assert "erf form" in card and "cannot load them" in " ".join(card.split())
