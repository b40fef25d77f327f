# SPDX-License-Identifier: Apache-2.0
"""Every cache, layer, container and output class of Transformers: flattened, rebuilt, and taken through a program.

The classes are found by importing every model, so one that a new version brings is tested, or makes these tests fail
until `all_containers.MAKERS` says how to make one.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as torch_pytree
from all_containers import (
    OPTIONAL,
    cache_classes,
    import_all,
    instance,
    layer_classes,
    output,
    output_classes,
    own_containers,
)
from torch.export import Dim
from transformers.utils import ModelOutput
from tree_equality import differences

from transporters.runners.torch_runner import TorchRunner
from transporters.trees import containers, pytrees
from transporters.trees.containers import type_name

#: Layers that cannot be made here, and the package that they want.
NEEDS_A_PACKAGE = {
    "transformers.cache_utils:QuantoQuantizedLayer": "optimum",
    "transformers.cache_utils:HQQQuantizedLayer": "hqq",
}

#: Output classes without instances: only their subclasses have fields.
WITHOUT_FIELDS = {"transformers.modeling_outputs:MultimodalModelOutput"}

#: How many output classes there are at least. Fewer would mean that the search has gone blind.
MANY = 600


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported() -> None:
    import_all()


def classes() -> list[type]:
    """Every class that the tests make an instance of, but for outputs."""
    found = [*cache_classes(), *layer_classes(), *own_containers()]
    return [cls for cls in found if type_name(cls) not in NEEDS_A_PACKAGE]


def failures(test: Callable[[type], Any], tested: list[type]) -> dict[str, str]:
    """Class to what went wrong, for all classes, so that one failure does not hide the others."""
    found = {}
    for cls in tested:
        try:
            test(cls)
        except Exception as error:  # noqa: BLE001  collected, and reported together
            found[type_name(cls)] = f"{type(error).__name__}: {str(error)[:500]}"
    return found


# ── The search ──


def test_every_models_module_is_looked_at() -> None:
    absent = {module: package for module, package in OPTIONAL.items() if importlib.util.find_spec(package) is None}
    assert import_all() == absent


def test_the_search_finds_what_it_must() -> None:
    names = {cls.__name__ for cls in classes()}
    assert names >= {"Cache", "DynamicCache", "EncoderDecoderCache", "StaticSlidingWindowLayer", "DummyLayer"}
    assert names >= {"MimiConv1dPaddingCache", "DeepseekV4CSACache", "ReformerDynamicCache", "xLSTMCache"}
    assert len(output_classes()) > MANY
    assert "GreedySearchDecoderOnlyOutput" not in {cls.__name__ for cls in classes()}


def test_what_cannot_be_made_is_named_with_its_cause() -> None:
    made = {type_name(cls): cls for cls in layer_classes()}
    for name, package in NEEDS_A_PACKAGE.items():
        assert importlib.util.find_spec(package) is None, f"{package} is installed: take {name} off the list"
        with pytest.raises(ImportError):
            instance(made[name], 3)
    outputs = {type_name(cls): cls for cls in output_classes()}
    for name in WITHOUT_FIELDS:
        assert not dataclasses.is_dataclass(outputs[name])


# ── Caches, layers and containers ──


def test_each_is_flattened_and_rebuilt() -> None:
    def round_trip(cls: type) -> None:
        made = instance(cls, 3)
        assert type(made) is cls
        leaves, names, context = containers.flatten(made)
        assert len(set(names)) == len(names) == len(leaves)
        assert cls.__name__ == "DummyLayer" or any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        built = containers.unflatten(leaves, context)
        assert differences(made, built) == []
        assert built is not made
        assert containers.flatten(built)[1:] == (names, context)

    assert failures(round_trip, classes()) == {}


def test_each_has_a_structure_that_can_be_written_down() -> None:
    def written(cls: type) -> None:
        pytrees.register(cls)
        tree = {"past": instance(cls, 3), "rest": (torch.ones(2), [None])}
        spec = pytrees.structure(tree)
        assert pytrees.loads(pytrees.dumps(spec)) == spec
        names = [name for name, _ in pytrees.named_leaves(tree)]
        assert len(set(names)) == len(names)
        assert names[-1] == "rest.0"
        assert all(name.startswith("past.") for name in names[:-1])
        assert differences(tree, pytrees.rebuild(pytrees.leaves(tree), pytrees.loads(pytrees.dumps(spec)))) == []
        assert pytrees.container_names_of(spec) == [type_name(cls)]

    assert failures(written, classes()) == {}


def test_what_is_cached_does_not_show_in_the_structure() -> None:
    """Or a program would take only a cache that is as full as the one that it was traced with."""

    def same_structure(cls: type) -> None:
        contexts = {containers.flatten(instance(cls, length))[2] for length in (2, 3, 7)}
        assert len(contexts) == 1, sorted(contexts)

    assert failures(same_structure, classes()) == {}


def test_a_copy_shares_nothing() -> None:
    def own_copy(cls: type) -> None:
        pytrees.register(cls)
        made = instance(cls, 3)
        before = [id(leaf) for leaf in containers.flatten(made)[0]]
        twin = copied(made)
        for leaf in containers.flatten(twin)[0]:
            if isinstance(leaf, torch.Tensor):
                leaf.zero_()
        assert [id(leaf) for leaf in containers.flatten(made)[0]] == before
        assert differences(made, instance(cls, 3)) == []

    assert failures(own_copy, classes()) == {}


class Through(torch.nn.Module):
    """Gives back what it is given, every tensor of it copied."""

    def forward(self, tree: Any, x: torch.Tensor) -> Any:
        return {"tree": copied(tree), "more": x + 1}


def copied(tree: Any) -> Any:
    return pytrees.map_named(lambda _, leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def saved_and_loaded(tree: Any, folder: Path, shapes: Any = None) -> Any:
    """A program that takes and gives ``tree``, after a way through a file; what can be called."""
    inputs = {"tree": tree, "x": torch.ones(3)}
    program = torch.export.export(Through(), (), inputs, dynamic_shapes=shapes, strict=False)
    TorchRunner.write(program, folder)
    return TorchRunner.read(folder).module()


def test_each_goes_into_a_program_and_comes_out_of_it(tmp_path: Path) -> None:
    """Traced with a sequence of 6, run after saving and loading with a sequence of 7."""

    def any_size(_: str, leaf: Any) -> Any:
        return dict.fromkeys(range(leaf.ndim), Dim.AUTO) if isinstance(leaf, torch.Tensor) else Dim.AUTO

    def through(cls: type) -> None:
        pytrees.register(cls)
        traced = copied(instance(cls, 6))  # as an exporter does; torch cannot load a program that took a strided view
        spec = pytrees.spec_tree({"tree": traced, "x": torch.ones(3)}, any_size)
        module = saved_and_loaded(traced, tmp_path, spec)
        given = instance(cls, 7)
        result = module(tree=given, x=torch.zeros(3))
        assert differences(instance(cls, 7), result["tree"]) == []
        assert result["more"].tolist() == [1, 1, 1]

    assert failures(through, classes()) == {}


# ── Outputs ──


def outputs(x: torch.Tensor) -> dict[str, Any]:
    found = [cls for cls in output_classes() if type_name(cls) not in WITHOUT_FIELDS]
    return {type_name(cls): output(cls, x) for cls in found}


def chunks(tree: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    names = list(tree)
    for start in range(0, len(names), size):
        yield {name: tree[name] for name in names[start : start + size]}


def test_each_output_is_flattened_and_rebuilt() -> None:
    wrong = {}
    for name, made in outputs(torch.rand(2, 3)).items():
        spec = pytrees.structure(made)
        built = pytrees.rebuild(pytrees.leaves(made), pytrees.loads(pytrees.dumps(spec)))
        names = [leaf for leaf, _ in pytrees.named_leaves(made)]
        if differences(made, built) or len(set(names)) != len(names) or pytrees.container_names_of(spec) != [name]:
            wrong[name] = differences(made, built), names
    assert wrong == {}


def test_each_output_is_found_again_by_its_name() -> None:
    for cls in output_classes():
        assert containers.find_type(type_name(cls)) is cls
        pytrees.register_found(cls)


@pytest.mark.parametrize("part", range(3))
def test_each_output_goes_into_a_program_and_comes_out_of_it(part: int, tmp_path: Path) -> None:
    """Together in a few programs: a program per class would take minutes."""
    everything = outputs(torch.rand(2, 3))
    tree = list(chunks(everything, len(everything) // 3 + 1))[part]
    module = saved_and_loaded(copied(tree), tmp_path)  # or the shared tensor would become one input
    others = {name: output(type(made), torch.rand(2, 3)) for name, made in tree.items()}
    result = module(tree=others, x=torch.zeros(3))
    assert differences(others, result["tree"]) == []


def test_an_output_holds_a_cache(tmp_path: Path) -> None:
    holders = [cls for cls in output_classes() if "cache" in getattr(cls, "__dataclass_fields__", ())][:10]
    assert holders
    for cls in holders:
        made: Any = cls(**{dataclasses.fields(cls)[0].name: torch.ones(2), "cache": instance(cache_classes()[2], 3)})
        assert isinstance(made, ModelOutput)
        module = saved_and_loaded(made, tmp_path)
        assert differences(made, module(tree=made, x=torch.zeros(3))["tree"]) == []


def test_outputs_keep_their_own_registration() -> None:
    for cls in output_classes():
        before = torch_pytree.SUPPORTED_NODES[cls]
        pytrees.register_found(cls)
        assert torch_pytree.SUPPORTED_NODES[cls] is before
