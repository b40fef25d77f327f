# SPDX-License-Identifier: Apache-2.0
"""Trees of any shape: taken apart, named, rebuilt, described; and what a container may hold."""

from __future__ import annotations

import math
import sys
import types
from collections import OrderedDict, UserDict, defaultdict, deque
from enum import Enum
from typing import Any

import pytest
import torch
import torch.utils._pytree as torch_pytree
from all_containers import instance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from tree_equality import differences

from tiny import build
from transporters.trees import containers, pytrees


@pytest.fixture(scope="module", autouse=True)
def _caches_are_registered() -> None:
    for cls in (DynamicCache, EncoderDecoderCache, DynamicSlidingWindowLayer):
        pytrees.register(cls)


# ── Any tree ──

names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
leaf = st.one_of(
    st.lists(st.integers(0, 3), max_size=3).map(torch.zeros),
    st.integers(-5, 5).map(lambda n: torch.tensor([n])),
    st.integers(-5, 5),
    st.none(),
)
cache = st.tuples(
    st.sampled_from([DynamicCache, EncoderDecoderCache, DynamicSlidingWindowLayer]), st.integers(1, 7)
).map(lambda drawn: instance(*drawn))


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    # A dict or pairs as the only field would be taken for the fields themselves.
    outputs = st.tuples(
        inner.filter(lambda value: value is not None and not isinstance(value, (dict, list, tuple))), inner
    )
    outputs = outputs.map(lambda pair: BaseModelOutputWithPast(last_hidden_state=pair[0], hidden_states=pair[1]))
    lists = st.lists(inner, max_size=3)
    return st.one_of(lists, lists.map(tuple), st.dictionaries(names, inner, max_size=3), outputs)


trees = st.recursive(st.one_of(leaf, cache), nested, max_leaves=8)
modest = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@modest
@given(trees)
def test_a_tree_is_rebuilt_from_its_leaves_and_its_written_structure(tree: Any) -> None:
    spec = pytrees.structure(tree)
    leaves = pytrees.leaves(tree)
    text = pytrees.dumps(spec)
    built = pytrees.rebuild(leaves, pytrees.loads(text))
    assert differences(tree, built) == []
    assert pytrees.structure(built) == spec
    assert all(one is other for one, other in zip(leaves, pytrees.leaves(built), strict=True))


@modest
@given(trees)
def test_the_names_of_leaves_are_unique_and_in_order(tree: Any) -> None:
    named = pytrees.named_leaves(tree)
    assert len({name for name, _ in named}) == len(named)
    assert [id(found) for _, found in named] == [id(found) for found in pytrees.leaves(tree) if found is not None]


@modest
@given(trees)
def test_a_mapped_tree_keeps_its_structure_and_shares_no_container(tree: Any) -> None:
    seen: list[str] = []
    mapped = pytrees.map_named(lambda name, found: seen.append(name) or found, tree)
    assert differences(tree, mapped) == []
    assert [name for name, found in zip(seen, pytrees.leaves(tree)) if found is not None] == [
        name for name, _ in pytrees.named_leaves(tree)
    ]
    if not torch_pytree.tree_is_leaf(tree) and tree != ():
        assert mapped is not tree


@modest
@given(trees)
def test_shapes_are_asked_for_by_the_same_names(tree: Any) -> None:
    seen: list[str] = []
    spec = pytrees.spec_tree({"x": tree}, lambda name, _: seen.append(name) or name)
    wanted = torch_pytree.tree_flatten_with_path({"x": tree})[0]
    assert seen == [pytrees.path_name(path) for path, _ in wanted]
    assert torch_pytree.tree_leaves(spec) == seen


def test_names_read_like_the_code_that_reaches_the_leaves() -> None:
    tree = {"cache": instance(DynamicCache, 3), "hidden": (torch.ones(1), [torch.ones(1)]), "absent": None}
    assert [name for name, _ in pytrees.named_leaves(tree)] == [
        "cache.layers.0.keys",
        "cache.layers.0.values",
        "cache.layers.1.keys",
        "cache.layers.1.values",
        "hidden.0",
        "hidden.1.0",
    ]
    assert pytrees.named_leaves(torch.ones(1))[0][0] == ""


def test_the_containers_of_a_tree_are_named() -> None:
    tree = [instance(DynamicCache, 3), {"out": BaseModelOutputWithPast(last_hidden_state=torch.ones(1))}, ()]
    assert pytrees.container_names_of(pytrees.structure(tree)) == [
        "transformers.cache_utils:DynamicCache",
        "transformers.modeling_outputs:BaseModelOutputWithPast",
    ]


# ── What a container may hold ──


class Colour(Enum):
    RED = "red"


class Box:
    """A plain object."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Slotted:
    __slots__ = ("value",)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -0.5,
        math.inf,
        'text with "quotes" and ümläuts',
        torch.float16,
        torch.device("cpu"),
        Colour.RED,
        Box,
        [1, [2, (3,)], []],
        {"a": 1, 2: "b", (1, "x"): None, None: 0},
        {1, 2},
        torch.Size([2, 3]),
        OrderedDict(b=1, a=2),
        defaultdict(list, a=[1]),
        deque([1, 2], maxlen=4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_data_is_kept(value: Any) -> None:
    leaves, found_names, context = containers.flatten(Box(value=value, tensor=torch.ones(2)))
    assert (found_names, len(leaves)) == (["tensor"], 1)
    built = containers.unflatten(leaves, context)
    assert type(built) is Box
    assert type(built.value) is type(value)
    assert built.value == value
    assert getattr(built.value, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(built.value, "default_factory", None) == getattr(value, "default_factory", None)


def test_nan_is_kept() -> None:
    assert math.isnan(containers.unflatten([], containers.flatten(Box(value=math.nan))[2]).value)


def test_tensors_are_found_wherever_they_are() -> None:
    tensor = torch.ones(1)
    box = Box(
        plain=tensor,
        listed=[tensor, {"deep": (tensor,)}],
        ordered=OrderedDict(x=tensor),
        queue=deque([tensor]),
        boxed=Box(inner=tensor),
        user=UserDict(k=tensor),
        by_number={0: tensor},
        config=LlamaConfig(hidden_size=64),
    )
    leaves, found_names, context = containers.flatten(box)
    assert found_names == [
        "plain",
        "listed.0",
        "listed.1.deep.0",
        "ordered.x",
        "queue.0",
        "boxed.inner",
        "user.k",
        "by_number.0",
    ]
    built = containers.unflatten([n * tensor for n in range(len(leaves))], context)
    assert built.listed[1]["deep"][0].item() == 2
    assert built.user["k"].item() == 6
    assert isinstance(built.user, UserDict)
    assert built.config.to_dict() == box.config.to_dict()


def test_counters_are_leaves_and_other_numbers_are_not() -> None:
    layer = instance(DynamicSlidingWindowLayer, 3)
    leaves, found_names, context = containers.flatten(layer)
    assert found_names == ["keys", "values", "cumulative_length"]
    built = containers.unflatten([*leaves[:2], 11], context)
    assert (built.cumulative_length, built.sliding_window) == (11, 4)
    assert built._sliding_window_tensor.item() == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.nn.Linear(1, 1), "held: a Linear cannot be part of"),
        (lambda: None, "held: a function cannot be part of"),
        (Slotted(), "held: a .*Slotted has no attributes to walk"),
        ([Box(bad=Slotted())], r"held\.0\.bad: a .*Slotted has no attributes to walk"),
        (defaultdict(lambda: 0), r"held\.default_factory: a function cannot be part of"),
    ],
)
def test_what_cannot_be_written_down_is_named(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        containers.flatten(Box(held=value))


def test_a_container_inside_itself_is_refused() -> None:
    box = Box(name="outer")
    box.inner = [box]
    with pytest.raises(TypeError, match="contains itself"):
        containers.flatten(box)
    twice = Box(one=[1], other=None)
    twice.other = twice.one
    assert containers.unflatten([], containers.flatten(twice)[2]).other == [1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a_module_that_nobody_imported:Box", "not imported"),
        ("os:system", "not a class"),
        ("torch:float32", "not a class"),
    ],
)
def test_a_context_cannot_name_just_anything(name: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        containers.find_type(name)
    with pytest.raises(TypeError, match=message):
        containers.unflatten([], f'{{"object":"{name}","userdict":false,"attributes":[]}}')


# ── Registration ──


def test_another_librarys_registration_is_replaced() -> None:
    class Foreign(Box):
        pass

    torch_pytree.register_pytree_node(Foreign, lambda _: ([], None), lambda *_: Foreign())
    pytrees.register(Foreign)
    pytrees.register(Foreign)
    assert [name for name, _ in pytrees.named_leaves([Foreign(x=torch.ones(1))])] == ["0.x"]


def test_a_models_own_containers_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_modeling_module")

    class OwnState(Box):
        pass

    class Encoder(torch.nn.Module):
        pass

    class Called(Box):
        def __call__(self) -> None: ...

    for cls in (OwnState, Encoder, Called):
        cls.__module__ = module.__name__
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert pytrees.container_types(module.__name__) == [OwnState]
    pytrees.register_model_containers(Encoder())
    assert OwnState in torch_pytree.SUPPORTED_NODES
    assert Called not in torch_pytree.SUPPORTED_NODES


def test_containers_in_the_inputs_are_registered() -> None:
    class InTheInputs(Box):
        pass

    tree = {"x": [torch.ones(1), ({"deep": InTheInputs(y=torch.ones(1))},)]}
    pytrees.register_model_containers(build("bert"), tree)
    assert [name for name, _ in pytrees.named_leaves(tree)] == ["x.0", "x.1.0.deep.y"]


@pytest.mark.parametrize("cls", [torch.nn.Linear, ValueError, Colour, type])
def test_a_file_cannot_have_just_anything_registered(cls: type) -> None:
    with pytest.raises(TypeError, match="is not a container"):
        pytrees.register_found(cls)
