"""Studies as their YAMLs declare them: ours, the one of the documents, and bad ones."""

import re
import shutil
from fnmatch import fnmatchcase

import pytest
from omegaconf import OmegaConf

from conventions.mechanisms import MECHANISMS
from lab.errors import UserError
from lab.files import RESULTS, ROOT
from lab.measure import MEASURES
from lab.run.recipe import compose_experiment, option
from lab.study.cells import check_layer_plans, check_plan_words, check_trusted, known_values
from lab.study.declaration import read_study, study_names
from lab.study.keys import Keys
from lab.study.records import read_records
from tests.lab.study.conftest import DOCUMENTED, cells
from user_dir.attention import attention_names as registered

CLAIM = {"says": "it is so", "where": "Table 1"}
BETTER = {"difference": ["exact", "elu", "softmax"], "at_least": 0}
SCORES = ["score", "elu", "softmax"]
PAPER = {"table": "lln_05_lra", "value": "text", "rows": ["Softmax"]}


@pytest.mark.parametrize("name", study_names())
def test_the_verdicts_of_an_answer_are_on_claims_of_the_study(name):
    """An answer is filled in only once everything in it is measured."""
    study = read_study(name)
    assert {*re.findall(r'verdict\("([^"]+)"', study.answer)} <= {claim.says for claim in study.claims}


@pytest.mark.parametrize("name", study_names())
def test_every_study_has_cells_and_a_place_for_each(name):
    study = read_study(name)
    found = cells(study, seeds=study.seeds)
    assert found and len({cell.record_path for cell in found}) == len(found)
    assert len({cell.fingerprint() for cell in found}) == len(found)
    check_layer_plans(found)
    check_trusted(found)
    for spec in study.tables:
        for name, names in spec.only.items():
            axis = study.axes[name]
            known = {*axis.choices, *(known_values(study, name) if axis.placeholder else ())}
            assert known.issuperset(names)


def test_a_clone_below_any_folder_knows_its_yamls(tmp_path, monkeypatch):
    study = read_study("lm")
    known = known_values(study, "method")
    shutil.copytree(ROOT / "configs", tmp_path / "we[ird]" / "configs")
    monkeypatch.setattr("lab.study.cells.ROOT", tmp_path / "we[ird]")
    assert "transnormer_t1" in known and known_values(study, "method") == known


def test_the_names_of_attentions_are_those_that_are_registered():
    assert set(MECHANISMS) == set(registered())


def test_the_documents_describe_every_key():
    lines = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8").splitlines()
    words = [{*re.findall(r"\w+", " ".join(re.findall("`([^`]+)`", line)))} for line in lines]
    of_rows = {
        line.split("`")[1]: found for line, found in zip(lines, words, strict=True) if line.startswith("| `")
    }
    rows = {"TuneKeys": "tune", "BestKeys": "best", "PlotKeys": "plot", "BaselineKeys": "baseline"}
    for part in Keys.__subclasses__():
        known = of_rows[rows[part.__name__]] if part.__name__ in rows else set().union(*words)
        assert known.issuperset(part.model_fields), part


def test_a_study_of_your_own_text_is_lm_without_the_keys_that_the_documents_name(tmp_path):
    text = (ROOT / "docs" / "own_text.md").read_text(encoding="utf-8")
    [named] = re.findall(
        r"Copy `configs/studies/lm.yaml` to `own.yaml`,\s+delete ([^,]+(?:, `\w+`)* and `\w+`),", text
    )
    content = OmegaConf.load(ROOT / "configs" / "studies" / "lm.yaml")
    for key in re.findall(r"`(\w+)`", named):
        del content[key]
    OmegaConf.save(content, tmp_path / "own.yaml")
    study = read_study(tmp_path / "own.yaml")
    rest = (study.answer, study.notes, study.prepare, study.extras, study.claims, study.tables[0].papers)
    assert not any(rest) and "paper" not in (tmp_path / "own.yaml").read_text()


def test_the_study_of_the_documents_is_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(DOCUMENTED)
    study = read_study(path)
    assert list(study.axes["method"].choices) == ["mine", "softmax", "elu", "lln", "performer"]
    assert len(cells(study, seeds=study.seeds)) == 15 and len(study.tune.values) == 3
    check_layer_plans(cells(study))


def test_settings_of_a_study_may_name_the_plan(study_with):
    axes = {"preset": ["tiny"], "method": {"elu": {}}}
    [cell] = cells(study_with(settings={"plan": "lln", "dropout": 0}, axes=axes, claims=[]))
    assert cell.own_flags() == ["--decoder-attention", "lln", "--dropout", "0", "--seed", "1"]


def test_a_setting_without_a_value_is_refused(study_file):
    study_file.write_text(study_file.read_text().replace("{plan: elu}", "{plan: elu, label: one, two}"))
    with pytest.raises(UserError, match=r"method\.elu: 'two' has no value"):
        read_study(study_file)


def test_a_cell_has_the_flags_of_its_choices(study_file):
    study = read_study(study_file)
    cell = cells(study, {"method": ["norm-t2"]}, flags=["--lr", "0.1"])[0]
    assert cell.own_flags() == [
        "--decoder-attention",
        "norm",
        "--norm-feature-map",
        "1+elu",
        "--lr",
        "0.1",
        "--seed",
        "1",
    ]
    assert cell.folder == ROOT / "runs" / "x" / "tiny" / "norm-t2" / "seed1"
    chosen = [c.values["method"] for c in cells(study, {"method": ["norm", "elu"]})]
    assert chosen == ["norm-t1", "norm-t2", "elu"]
    assert [c.seed for c in cells(study, {"method": ["elu"]}, seeds=3)] == [1, 2, 3]


def test_seeds_are_counted_from_that_of_the_yaml(study_with):
    study = study_with(settings={"yaml": {"common": {"seed": 5}}})
    assert [c.seed for c in cells(study, {"method": ["elu"]}, seeds=3)] == [5, 6, 7]


def test_the_seed_of_the_yaml_is_a_number(study_with):
    for seed in ("x", None, [1]):
        with pytest.raises(UserError, match="tiny, elu: common.seed is .*; write a whole number"):
            cells(study_with(settings={"yaml": {"common": {"seed": seed}}}), {"method": ["elu"]})


def test_a_number_may_be_a_key_of_a_choice(study_with):
    """Of a choice of another axis, and in place of a setting, which fairseq then refuses."""
    axes = {"preset": ["tiny"], "lr": [0.1], "method": {"elu": {"lr": {0.1: {"dropout": 0}}, 3: 4}}}
    [cell] = cells(study_with(axes=axes, claims=[]))
    assert cell.own_flags() == ["--lr", "0.1", "--dropout", "0", "--3", "4", "--seed", "1"]
    axes["method"]["elu"] = {"yaml": {"model": {3: 4}}}
    [cell] = cells(study_with(axes=axes, claims=[], settings={"yaml": {"task": {5: 6}}}))
    assert {"--3", "--5"} <= {*cell.experiment.flags()}


def test_settings_may_depend_on_another_axis():
    study = read_study("ablations")
    for preset, plan in (("small", "norm*4"), ("paper", "norm*12")):
        [cell] = cells(study, {"preset": [preset], "model": ["t1"], "variant": ["diag-none"]})
        assert option(cell.own_flags(), "--encoder-attention") == plan


def test_a_switch_can_be_off_in_one_choice(study_with):
    half = {"yaml": {"common": {"fp16": True}}}
    study = study_with(axes={"preset": ["tiny"], "method": {"elu": half, "softmax": {**half, "fp16": False}}})
    on, off = (cells(study, {"method": [name]})[0] for name in ("elu", "softmax"))
    assert "--fp16" in on.experiment.flags() and "--fp16" not in [*off.experiment.flags(), *off.own_flags()]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"axis": {}}, "axis; did you mean axes"),
        ({"evaluate": "copie"}, "'copie'; did you mean copy"),
        ({"checkpoint": "newest"}, "newest"),
        ({"seeds": 0}, "seeds"),
        ({"config": "configs/copy/{size}.yaml"}, "size"),
        ({"axes": {"method": {"elu": 3}}, "config": "configs/copy/tiny.yaml"}, "method.elu"),
        ({"axes": {"lr": [1, "1"]}, "config": "x"}, "two choices of lr have the name '1'; rename one"),
        ({"axes": {"lr": {1: {}, "1": {}}}, "config": "x"}, "two choices of lr have the name '1'"),
        (
            {"axes": {"a": {"x": {"label": "A"}, "y": {"label": "A"}}}, "config": "x"},
            "two choices of a have the label 'A'",
        ),
        ({"axes": {"method": []}, "config": "configs/copy/tiny.yaml"}, "method"),
        (
            {"table": {"rows": "methode", "columns": [["x", "loss_nats", ".2f"]]}},
            "methode; did you mean method",
        ),
        ({"table": {"columns": [["x", "loss nats", ".2f"]]}}, "loss nats"),
        (
            {"table": {"columns": [["x", "valid.bitz", ".2f"]]}, "evaluate": "language_model"},
            "shows valid.bitz, which evaluate: language_model does not measure; did you mean valid.bits",
        ),
        ({"claims": [{**CLAIM, "test": {"rank": "training.second", "at_least": 1}}]}, "did you mean seconds"),
        ({"baseline": {"name": "guess", "found": {"loss_nats": "abc"}}}, "the baseline 'guess' has abc"),
        ({"best": {"axis": "method", "highest": "scor"}}, "best chooses by scor"),
        ({"table": {"columns": [["x", "loss_nats", "two digits"]]}}, "two digits"),
        ({"table": {"columns": []}}, "columns"),
        ({"table": {"column": [["x", "loss_nats", ".2f"]]}}, "column; did you mean columns"),
        ({"paper": {"table": "linear_99"}}, "linear_99"),
        ({"paper": {"table": "linear_01_mnist", "value": "bits"}}, "bits"),
        (
            {"paper": {"table": "linear_01_mnist", "value": "bits_per_dim", "rows": {"elu": "lineal"}}},
            "lineal",
        ),
        ({"baseline": {"name": "guessing"}}, "baseline"),
        ({"tune": {"axis": "lr", "values": [1], "updates": 3, "by": "loss"}}, "loss"),
        ({"tune": {"axis": "method", "values": [1], "updates": 3}}, "method"),
        (
            {"tune": {"axis": "lr", "values": [1], "updates": 3, "only": {"method": "linear"}}},
            "tune: only: method has no linear",
        ),
        ({"tune": {"axis": "lr", "values": ["x"], "updates": 3, "bracket": True}}, "bracket needs values"),
        ({"plot": {"curves": "test"}}, "test"),
        ({"extras": "images"}, "extras is 'images'; it must be true or false"),
        ({"plot": {"curves": "train", "factor": "a"}}, "factor is 'a'"),
        ({"table": {"only": {"method": "elv"}, "columns": [["x", "loss_nats", ".2f"]]}}, "did you mean elu"),
        ({"config": "configs/copy/{preset.x}.yaml"}, "preset.x"),
        ({"config": "configs/copy/{preset.yaml"}, "config is 'configs/copy/{preset.yaml': expected '}'"),
        *(({"axes": {name: ["1", "2"]}}, "cannot name an axis") for name in ("seed", "data", "block-size")),
        ({"axes": None}, "axes is missing"),
        ({"axes": 5}, "axes is 5; write keys and values"),
        ({"claims": 5}, "claims is 5; write a list"),
        ({"claims": [5]}, "claims is 5; write keys and values"),
        ({"plot": {"curves": "train", "by": "second"}}, "by.0 is 'second'; did you mean seconds"),
        ({"notes": "{% if %}"}, "notes cannot be read: Expected an expression"),
        ({"answer": "{% if %}"}, "answer cannot be read: Expected an expression"),
        (
            {"answer": '{{median("loss", "elu", ".2f")}}'},
            "the answer names loss, which evaluate: copy",
        ),
        ({"about": ["x"]}, "about is ['x']; write a text"),
        ({"notes": {"x": 1}}, "notes is {'x': 1}; write a text"),
        ({"table": {"columns": [[["x"], "loss_nats", ".2f"]]}}, "columns.0.0 is ['x']; write a text"),
        ({"plot": {"curves": "train", "asks": ["x"]}}, "plot: asks is ['x']; write a text"),
        ({"axes": {"method": {"elu": {"label": ["x"]}}}, "config": "x"}, "label is ['x']; write a text"),
        ({"extras": True}, "evaluate: copy has no extras; leave them out"),
        (
            {"tune": {"axis": "lr", "values": [0.001, 1e-3], "updates": 3}},
            "tune: a value stands twice in 0.001, 0.001",
        ),
        (
            {"extras": True, "evaluate": "carried"},
            "carried has no extras without the axes model, segment, way",
        ),
        ({"claims": [{**CLAIM, "test": {"ratio": ["exact", "eluu", "softmax"], "at_most": 1}}]}, "mean elu"),
        (
            {"claims": [{**CLAIM, "test": {"ratio": ["exact", "elu/softmax", "elu"], "at_most": 1}}]},
            "there is no row elu/softmax; a row is named method",
        ),
        (
            {"claims": [{**CLAIM, "test": {**BETTER, "bootstrap": True}}]},
            "bootstrap is of score, the first metric of a GLUE task, not of exact",
        ),
        (
            {"claims": [{**CLAIM, "test": {**BETTER, "examples": "n", "bootstrap": True}}]},
            "write examples or bootstrap: true",
        ),
        (
            {
                "claims": [
                    {
                        **CLAIM,
                        "test": {**BETTER, "difference": ["score", "elu", "softmax"], "bootstrap": True},
                    }
                ]
            },
            "bootstrap needs the predictions that evaluate: glue keeps",
        ),
        ({"evaluate": "glue"}, "evaluate: glue measures fine-tuned models; name the study that trains them"),
        *(
            ({"claims": [{**CLAIM, "test": BETTER, "paper": {**PAPER, **given}}]}, said)
            for given, said in (
                ({"table": "lln_05"}, "results/paper has no table lln_05"),
                ({"value": "txt"}, "lln_05_lra has no column txt; did you mean text"),
                ({"rows": ["LLN"]}, "lln_05_lra has no row LLN"),
            )
        ),
        (
            {"claims": [{**CLAIM, "test": {"rank": "x", "at_least": "a"}}]},
            "at_least is 'a'; it must be a number",
        ),
        (
            {"baseline": {"name": "guess", "found": {"x": 1}, "margin": {"x": "a"}}},
            "margin.x is 'a'; it must",
        ),
        (
            {"baseline": {"name": "guess", "found": {"x": 1}, "margin": {"x": 0}}},
            "baseline: margin.x is 0; write",
        ),
        (
            {"baseline": {"name": "guess", "found": {"x": 1}, "margin": {"x": -1}, "examples": "n"}},
            "baseline: examples belongs to an accuracy",
        ),
        (
            {"paper": {"table": "linear_01_mnist", "value": "bits_per_dim", "rows": {"eluu": "softmax"}}},
            "method has no choice eluu; did you mean elu",
        ),
        ({"best": {"axis": "methd", "highest": "loss_nats"}}, "no axis methd; did you mean method"),
        ({"best": {"axis": "method"}}, "one of highest, lowest"),
        ({"best": {"axis": "method", "highest": "a", "lowest": "b"}}, "one of highest, lowest"),
        ({"best": {"axis": "method", "highst": "a"}}, "no key highst; did you mean highest"),
        ({"start": "copi"}, "names no study 'copi'; did you mean copy"),
        ({"keep": "some"}, "choose from measured, all"),
        ({"settings": 3}, "settings is 3; write keys and values"),
        ({"settings": {"yaml": 3}}, "settings.yaml needs groups"),
        ({"settings": {"lr": None}}, "settings: 'lr' has no value"),
        ({"data": "data/{task}"}, "data names {task}"),
        *(
            (
                {"axes": {"preset": ["tiny"], "method": {name: {"plan": "elu"}}}},
                "cannot name a choice of method",
            )
            for name in ("..", ".", "", "../x", "/x", ".x", "-x", "a/b", "a\0")
        ),
        *(
            ({"axes": {"preset": ["tiny"], "method": ["elu"], "lr": [value]}}, "cannot be a value of lr")
            for value in ("..", "../../x", "", "-1", "/x")
        ),
        ({"tune": {"axis": "lr", "values": ["x/../../../y"], "updates": 3}}, "cannot be a value"),
        ({"tune": {"axis": "../lr", "values": [1], "updates": 3}}, "'../lr' is not a setting"),
        ({"prepare": ["/bin/sh", "-c", "true"]}, "prepare: data-prep/ has no /bin/sh; choose from"),
        ({"prepare": ["../scripts/test.sh"]}, "data-prep/ has no ../scripts/test.sh"),
        ({"prepare": {"data/x": ["glue.sh", "--dest", "data/../../x"]}}, "names data/../../x; name folders"),
        *(
            ({"prepare": ["lra.sh", word]}, f"prepare names {word}; name folders inside the project")
            for word in ("--dest=/x", "--dest=../x", "--url=http://example.com/x", "http://example.com/x")
        ),
        (
            {"axes": {"preset": ["tiny"], "method": {"mine": {"preset": {"tiny": "norm"}}}}, "claims": []},
            "method.mine.preset.tiny needs settings such as {plan: elu}, found 'norm'",
        ),
        (
            {
                "axes": {
                    "preset": ["tiny"],
                    "task": ["a"],
                    "method": {"mine": {"preset": {"tiny": {"task": {"a": {"dropout": 0}}}}}},
                },
                "claims": [],
            },
            "method.mine.preset.tiny.task is {'a': {'dropout': 0}}; a setting depends on one",
        ),
        *(
            ({"paper": {"table": "linear_01_mnist", "value": value}}, "paper: value is ")
            for value in ([], ["bits"], {}, {"preset": "bits"}, {"a": {}, "b": {}})
        ),
        (
            {"axes": {"method": {"mine": {"yaml": {"model": {"_name": ["a"]}}}}}, "config": "x"},
            "method.mine.yaml: _name is ['a']; it is a text",
        ),
        ({"settings": {"lr": "${oc.env:HOME}"}}, "settings has an interpolation"),
        (
            {"settings": {"seed": 7}},
            "settings: seed is 7, but a study counts its seeds; write how many below",
        ),
        ({"axes": {"method": {"x": {"seed": 7}}}, "config": "x"}, "method.x: seed is 7"),
        (
            {"axes": {"preset": ["tiny"], "method": {"x": {"preset": {"tiny": {"seed": 7}}}}}, "claims": []},
            "method.x: seed is 7",
        ),
        ({"tune": {"axis": "seed", "values": [1], "updates": 3}}, "the seed cannot be tuned; write"),
        (
            {"axes": {"method": {"a": {"on_request": True}, "b": {"on_request": True}}}, "config": "x"},
            "all choices of method are on_request; leave at least one without it",
        ),
        (
            {
                "table": {
                    "rows": ["preset", "method"],
                    "across": "method",
                    "columns": [["loss", "loss_nats", ".2f"], ["converged", "converged", "count"]],
                }
            },
            "a column beside across has a number's format such as .2f, not count",
        ),
        (
            {"baseline": {"name": "guess", "found": {"100*accuracy": 25}, "margin": {"100*accuracy": 2}}},
            "found has 100*accuracy; name the figure without a factor",
        ),
        (
            {
                "baseline": {
                    "name": "guess",
                    "found": {"accuracy": 0.25},
                    "margin": {"accuracy": 0.02},
                    "examples": "examples",
                }
            },
            "examples belongs to an accuracy in percent, and accuracy is a share; leave examples out",
        ),
        *(
            (
                {
                    "evaluate": evaluate,
                    "table": {"rows": "method", "columns": [["accuracy", "accuracy", ".1f"]]},
                    "baseline": None,
                    "claims": [
                        {
                            **CLAIM,
                            "test": {
                                **BETTER,
                                "difference": [figure, "elu", "softmax"],
                                "examples": "examples",
                            },
                        }
                    ],
                },
                f"examples belongs to an accuracy in percent; write {instead}",
            )
            for evaluate, figure, instead in (
                ("copy", "exact", "100*exact"),
                ("copy", "10*exact", "100*exact"),
                ("lra", "100*accuracy", "accuracy"),
            )
        ),
        ({"config": "configs/${oc.env:HOME}.yaml"}, "config has an interpolation"),
        *(
            ({"axes": {"method": {"slow": {"yaml": given}}}, "config": "x"}, "method.slow.yaml needs groups")
            for given in (3, {"model": 3}, ["model"])
        ),
    ],
)
def test_a_bad_study_is_refused_with_the_nearest_name(study_with, change, named):
    with pytest.raises(UserError, match=re.escape(named)) as error:
        study_with(**change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"user_dir": "/somebody"}},
        {"settings": {"lr": "--user-dir=/somebody"}},
        {"axes": {"preset": ["tiny"], "method": {"elu": {"yaml": {"checkpoint": {"save_dir": "/tmp"}}}}}},
        {"axes": {"preset": ["tiny"], "method": ["elu"], "log_file": ["log"]}},
        {"tune": {"axis": "wandb_project", "values": ["x"], "updates": 3}},
    ],
)
def test_no_study_runs_code_or_writes_elsewhere(study_with, change):
    found = cells(study_with(**change, claims=[]), flags=["--tensorboard-logdir", "mine"])
    refusal = "--(user-dir|save-dir); take it out$|--(log-file|wandb-project); take it out, or give it on the"
    with pytest.raises(UserError, match=f"no study sets ({refusal})"):
        check_trusted(found)


def test_no_training_yaml_reads_from_outside(tmp_path):
    config = tmp_path / "x.yaml"
    for value in ("${oc.env:HOME}", "a ${hydra:runtime.cwd}"):
        config.write_text(f"model: {{_name: transformer_lm, decoder_embed_dim: 8, activation_fn: '{value}'}}")
        with pytest.raises(UserError, match="reads from outside"):
            compose_experiment(config)
    config.write_text("model: {_name: x, a: 8, b: '${model.a}'}")
    assert compose_experiment(config).get("model", "b") == 8


def test_no_row_joins_choices_that_another_table_tells_apart(study_file):
    """A row of such a table would show learning rates as if they were seeds."""
    content = OmegaConf.to_container(OmegaConf.load(study_file))
    axes = {**content["axes"], "lr": [1, 2]}
    columns = {"columns": content.pop("table")["columns"]}
    both = {"rows": ["method", "lr"], **columns}

    def read(table, **keys):
        changed = {**content, "axes": axes, "tables": [both, {"rows": "method", **columns, **table}], **keys}
        OmegaConf.save(OmegaConf.create(changed), study_file)
        return read_study(study_file)

    with pytest.raises(UserError, match="the rows method would join the choices of lr"):
        read({})
    read({"only": {"lr": "2"}})
    read({}, best={"axis": "lr", "lowest": "loss_nats"})


@pytest.mark.parametrize("group", ["common: 5", "common: false", "model: transnormer_t1", "common: [a]"])
def test_a_training_yaml_with_a_value_in_place_of_settings_is_refused(study_with, tmp_path, group):
    config = tmp_path / "training.yaml"
    config.write_text(f"task: {{_name: copy}}\n{group}\n")
    with pytest.raises(UserError, match=f"{config.name}: {group.partition(':')[0]} is .*; write settings"):
        cells(study_with(config=str(config), axes={"method": ["elu"]}, claims=[]))


def test_a_group_may_be_empty(tmp_path):
    config = tmp_path / "training.yaml"
    config.write_text("task: {_name: copy}\ncommon:\n")
    experiment = compose_experiment(config)
    assert experiment.changed({"common": {"seed": 3}}).flags() == ["--task", "copy", "--seed", "3"]


@pytest.mark.parametrize("config", ["configs/nowhere/{preset}.yaml", "configs/copy/tinny.yaml"])
def test_no_combination_is_a_sentence(study_with, config):
    with pytest.raises(UserError, match=config.partition("{")[0]):
        cells(study_with(config=config))


def test_the_figures_of_an_evaluator_are_those_of_its_records():
    """By the committed records, where there are any."""
    found = {name: set() for name in MEASURES}
    for name in study_names():
        study = read_study(name)
        for record in read_records(RESULTS / name, study):
            found[study.evaluate].update(leaves(record["found"]))
    for name, paths in found.items():
        known = MEASURES[name].figures.split()
        assert not [path for path in paths if not any(fnmatchcase(path, one) for one in known)], name
        assert not paths or all(any(fnmatchcase(path, one) for path in paths) for one in known), name


def leaves(value, path=""):
    """The paths of all values of nested mappings and lists."""
    if not isinstance(value, dict | list):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [one for key, part in items for one in leaves(part, f"{path}.{key}" if path else str(key))]


@pytest.mark.parametrize(("asked", "named"), [({"method": ["elv"]}, "elu"), ({"preset": ["tinny"]}, "tiny")])
def test_an_unknown_choice_is_refused_with_the_nearest_one(study_file, asked, named):
    with pytest.raises(UserError, match=f"did you mean {named}"):
        cells(read_study(study_file), asked)


def test_choices_without_a_yaml_are_left_out_unless_they_were_asked_for():
    study = read_study("images")
    methods = [cell.values["method"] for cell in cells(study, {"preset": ["digits"]})]
    assert methods == ["softmax", "linear", "t2", "lln_diag"]
    names = [cell.name for cell in cells(study, {"preset": ["mnist"], "method": ["lsh"]})]
    assert names == ["mnist, lsh-1, seed 1", "mnist, lsh-4, seed 1"]
    with pytest.raises(UserError, match="--method lsh-1: images has no settings for it"):
        cells(study, {"preset": ["digits"], "method": ["lsh-1", "softmax"]})
    with pytest.raises(UserError, match="--preset digit: .*; did you mean digits?"):
        cells(study, {"preset": ["digit"]})


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--seed", "--seeds"),
        ("--save-dir", "--out"),
        ("--restore-file", "start"),
        ("--arch", "config"),
        ("--user-dir", "study.sh"),
        ("--decoder-attention", "--method"),
        ("--norm-feature-map", "--method"),
    ],
)
def test_flags_that_differ_from_cell_to_cell_are_refused(study_file, flag, instead):
    with pytest.raises(UserError, match=f"{flag} .*{instead}"):
        cells(read_study(study_file), flags=[flag, "1"])
    with pytest.raises(UserError, match=f"{flag} .*{instead}"):
        cells(read_study(study_file), flags=[f"{flag}=1"])


@pytest.mark.parametrize(
    "plan", ["elv", "elu*3", "elu*", "elu,,elu", "elu+nrom*2", "transnormer_t1*2", "transnormer"]
)
def test_bad_layer_plans(plan):
    with pytest.raises(UserError, match="layer plan"):
        check_plan_words(plan, 2, "the layer plan")


@pytest.mark.parametrize("plan", ["elu", "elu*2", "elu,softmax", "diag+norm*2", "transnormer_t1"])
def test_good_layer_plans(plan):
    check_plan_words(plan, 2, "the layer plan")
