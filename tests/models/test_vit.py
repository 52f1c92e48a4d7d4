"""Vision Transformers: sizes, patches, pooling, every mechanism and refused settings."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_REGISTRY

from lab.run.plan import parsed
from lab.study.cells import Plan, cells_of
from lab.study.declaration import read_study
from tests.helpers.cases import firstly
from tests.helpers.images import SMALL_VIT, build_vit
from tests.helpers.lra import SHORT
from user_dir.attention import attention_names
from user_dir.errors import UserError
from user_dir.tasks.image_data import ImageShape

PETS, CIFAR = ImageShape(256, 224, 224, 3), ImageShape(256, 32, 32, 3)
DIGITS = ImageShape(17, 8, 8, 1)
SHAPE = ImageShape(17, 8, 6, 3)
SEPARATE = {"encoder_attention": "linformer", "linformer_rank": 64, "linformer_projection": "separate"}


def images(count: int = 3, shape: ImageShape = SHAPE, seed: int = 0) -> torch.Tensor:
    size = (count, shape.height, shape.width, shape.channels)
    return torch.randint(0, shape.levels, size, dtype=torch.uint8, generator=torch.manual_seed(seed))


@pytest.mark.parametrize(
    ("arch", "classes", "options", "parameters"),
    [
        ("vit_small_128", 2, {}, 2_525_992),
        ("vit_small_128", 2, SEPARATE, 4_100_392),
        ("vit_small_128", 2, {"patch_size": 16}, 2_500_738),
        ("vit_small_128", 2, {"patch_size": 16, **SEPARATE}, 2_803_330),
        ("vit_small_128", 2, {"patch_size": 32}, 2_781_442),
        ("vit_deit_tiny", 1000, {}, 5_717_416),
        ("vit_deit_tiny", 2, {}, 5_524_802),
    ],
)
def test_sizes_are_those_of_the_public_code(arch, classes, options, parameters):
    with torch.device("meta"):
        model = build_vit(PETS, classes, arch, **options)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", firstly(2, ["t1", "lln_diag", "linformer", "softmax", "t2"]))
def test_every_cell_of_the_study_builds_its_model(name):
    plan, found = Plan(read_study("vit"), Path("out"), None, ()), {}
    for preset, shape, classes in (("digits", DIGITS, 10), ("cifar10", CIFAR, 10), ("dogs_vs_cats", PETS, 2)):
        [cell] = cells_of(plan, {"preset": [preset], "method": [name]}, seeds=1)
        words = [*cell.experiment.flags(), *cell.own_flags(), "--save-dir", "runs"]
        cfg = convert_namespace_to_omegaconf(parsed(["data", *words])).model
        with torch.device("meta"):
            model = MODEL_REGISTRY[cfg._name].build_model(cfg, SimpleNamespace(shape=shape, classes=classes))
        found[preset] = sum(p.numel() for p in model.parameters())
        assert len(model.layers) == (12 if preset == "dogs_vs_cats" else 4)
    papers = {"softmax": 2_525_992, "lln_diag": 2_525_992, "linformer": 4_100_392}
    assert found["dogs_vs_cats"] == papers.get(name, found["dogs_vs_cats"])


def test_patches_are_squares_row_by_row():
    model = build_vit(SHAPE, no_patch_norm=True, **SMALL_VIT)
    x = images()
    found = model.patches(x)
    assert found.shape == (3, 4 * 3, 12)
    third = x[:, 2:4, 0:2].flatten(1) / 16  # after the three of the first row
    torch.testing.assert_close(found[:, 3], model.patches.linear(third))


def test_a_patch_of_one_value_is_not_erased():
    model = build_vit(ImageShape(17, 8, 6, 1), **{**SMALL_VIT, "patch_size": 1})
    assert model.patches.norm_in is None and model.patches.norm_out is not None
    assert build_vit(SHAPE, **{**SMALL_VIT, "patch_size": 1}).patches.norm_in is not None


@torch.no_grad()
def test_pooling_takes_cls_or_the_mean():
    cls, mean = (build_vit(SHAPE, pooling=pooling, **SMALL_VIT) for pooling in ("cls", "mean"))
    seen = {}
    for model in (cls, mean):
        model.layer_norm.register_forward_hook(lambda module, args, out, key=model: seen.update({key: out}))
    logits = {model: model(images()) for model in (cls, mean)}
    assert seen[cls].shape[0] == 13 and seen[mean].shape[0] == 12
    torch.testing.assert_close(logits[cls], cls.classifier(seen[cls][0]))
    torch.testing.assert_close(logits[mean], mean.classifier(seen[mean].mean(0)))


@torch.no_grad()
def test_positions_tell_patches_apart():
    for kind, same in (("learned", False), ("none", True)):
        model = build_vit(SHAPE, absolute_positions=kind, **SMALL_VIT).double()
        x = images()
        turned = torch.cat([x[:, 4:], x[:, :4]], dim=1)
        assert torch.allclose(model(x), model(turned)) is same


@pytest.mark.parametrize("name", attention_names(causal=False))
def test_every_mechanism_gives_an_image_the_same_logits_in_any_batch(name):
    options = {**SHORT, **SMALL_VIT, "patch_size": 1, "encoder_attention": name}
    if name in ("flash", "flash_quad"):
        options["encoder_attention_heads"] = 1
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = build_vit(SHAPE, **options).double()
    x = images(4)
    together = model(x)
    together.sum().backward()
    assert together.shape == (4, 10) and together.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        torch.testing.assert_close(model(x[:1]), together[:1], rtol=1e-8, atol=1e-8)


def test_queries_keys_and_values_without_bias():
    model = build_vit(SHAPE, encoder_attention="lln_diag,diag+norm", no_encoder_qkv_bias=True, **SMALL_VIT)
    names = [name for name, _ in model.named_parameters() if name.endswith("proj.bias")]
    assert names and all(name.endswith("out_proj.bias") for name in names)
    assert model(images()).isfinite().all()


def test_alpha_alone_fixes_beta_too():
    for name in ("lln", "lln_diag"):
        model = build_vit(SHAPE, encoder_attention=name, **{f"{name}_alpha": 3.0}, **SMALL_VIT)
        assert model.layers[0].self_attn.scale.fixed == (3.0, 3.0)
    with pytest.raises(UserError, match=r"alpha = 0.0, beta = 2.0; give a positive alpha"):
        build_vit(SHAPE, encoder_attention="lln_diag", lln_diag_beta=2.0, **SMALL_VIT)
