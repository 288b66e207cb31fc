# SPDX-License-Identifier: Apache-2.0
"""The tap sees every gradient that libraries take, and changes none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.exporters.running import run_program
from typing_extensions import override

from floatwise.jax.script.gradient_tap import Call, GradientListener, GradientTap
from floatwise.tap.patches import Patches

W = jnp.arange(6.0).reshape(3, 2) / 7
X = jnp.arange(12.0).reshape(4, 3) / 5


class Listener(GradientListener):
    """Keeps what it was told; multiplies gradients by `factor`."""

    def __init__(self, factor: float | None = None) -> None:
        self.factor, self.calls, self.losses = factor, list[Call](), list[Any]()

    @override
    def gradients(self, call: Call, loss: Any, grads: Any) -> Any:
        self.calls.append(call)
        self.losses.append(loss)
        return grads if self.factor is None else jax.tree.map(lambda g: g * self.factor, grads)


@contextmanager
def tapped(listener: GradientListener, made_before: bool = False) -> Iterator[GradientTap]:
    patches = Patches()
    tap = GradientTap(patches, listener, made_before)
    try:
        yield tap
    finally:
        patches.undo()


def loss(w: Any, x: Any = X) -> Any:
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def with_aux(w: Any, x: Any) -> Any:
    return loss(w, x), {"note": "text", "kept": x @ w}


def by_grad() -> Any:
    return jax.grad(loss)(W)


def by_value_and_grad() -> Any:
    return jax.value_and_grad(loss)(W, X)


def by_imported_names() -> Any:
    from jax import grad

    return jax.jit(grad(loss))(W)


def with_auxiliary_data() -> Any:
    return jax.grad(with_aux, has_aux=True)(W, X), jax.value_and_grad(with_aux, has_aux=True)(W, X)


def of_two_arguments() -> Any:
    return jax.value_and_grad(loss, argnums=(0, -1))(W, X)


def of_integers() -> Any:
    return jax.grad(lambda n, w: loss(w) * n, argnums=(0, 1), allow_int=True)(3, W)[1]


def per_example() -> Any:
    return jax.vmap(jax.grad(loss), (None, 0))(W, X[:, None])


def in_scan() -> Any:
    return jax.lax.scan(lambda w, x: (w - 0.1 * jax.grad(loss)(w, x), None), W, jnp.stack([X, X]))[0]


def by_nnx() -> Any:
    nnx: Any = pytest.importorskip("flax.nnx")

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    value, grads = nnx.value_and_grad(lambda m: jnp.sum(m(X) ** 2))(model)
    return value, jax.tree.leaves(grads), jax.tree.leaves(nnx.grad(lambda m: jnp.sum(m(X) ** 2))(model))


def by_equinox() -> Any:
    eqx: Any = pytest.importorskip("equinox")

    model = eqx.nn.Linear(3, 2, key=jax.random.key(0))

    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def run(model: Any) -> Any:
        def of_model(m: Any) -> Any:
            return jnp.sum(jax.vmap(m)(X) ** 2)

        return eqx.filter_value_and_grad(of_model)(model), eqx.filter_grad(of_model)(model)

    return [leaf for leaf in jax.tree.leaves(run(model)) if hasattr(leaf, "dtype")]


def by_haiku() -> Any:
    hk: Any = pytest.importorskip("haiku")

    def inside(x: Any) -> Any:
        layer = hk.Linear(2)
        return hk.value_and_grad(lambda v: jnp.sum(layer(v)))(x)

    transformed = hk.transform(inside)
    params = transformed.init(jax.random.PRNGKey(0), X)
    return transformed.apply(params, None, X)


def by_optax() -> Any:
    optax: Any = pytest.importorskip("optax")

    solver = optax.lbfgs()
    state = solver.init(W)
    return optax.value_and_grad_from_state(loss)(W, state=state)


def by_flax_scale() -> Any:
    dynamic_scale: Any = pytest.importorskip("flax.training.dynamic_scale")
    return tuple(dynamic_scale.DynamicScale().value_and_grad(loss)(W, X))[1:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("run", "count"),
    [
        (by_grad, 1),
        (by_value_and_grad, 1),
        (by_imported_names, 1),
        (with_auxiliary_data, 2),
        (of_two_arguments, 1),
        (of_integers, 1),
        (per_example, 1),
        (in_scan, 1),
        (by_nnx, 2),
        (by_equinox, 2),
        (by_haiku, 2),
        (by_optax, 1),
        (by_flax_scale, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_each_gradient_is_seen_and_the_same_bit_for_bit(run: Callable[[], Any], count: int) -> None:
    alone = run()
    listener = Listener()
    with tapped(listener) as tap:
        watched = run()
    assert tap.calls == len(listener.calls) == count
    assert str(jax.tree.structure(alone)) == str(jax.tree.structure(watched))
    for before, after in zip(jax.tree.leaves(alone), jax.tree.leaves(watched), strict=True):
        assert before == after if isinstance(before, str) else np.array_equal(before, after)


@pytest.mark.parametrize("name", ["grad", "value_and_grad"])
def test_what_is_refused_is_refused_in_the_same_words(name: str) -> None:
    def messages() -> list[str]:
        found = []
        wrong: list[Callable[[], Any]] = [
            lambda: getattr(jax, name)(lambda w: w)(W),
            lambda: getattr(jax, name)(loss)(3),
            lambda: getattr(jax, name)(loss)(),
            lambda: getattr(jax, name)("loss"),
            lambda: getattr(jax, name)(loss, argnums=5)(W),
        ]
        for call in wrong:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                call()
            found.append(f"{type(caught.value).__name__}: {caught.value}")
        return found

    alone = messages()
    with tapped(Listener()):
        assert messages() == alone


def test_names_and_docstrings_stay() -> None:
    plain = jax.grad(loss)
    with tapped(Listener()):
        watched = jax.grad(loss)
        assert jax.grad.__name__ == "grad"
        assert "gradient" in str(jax.grad.__doc__)
    assert (watched.__name__, watched.__doc__) == (plain.__name__, plain.__doc__)


def test_the_listener_gets_loss_and_gradients_and_may_change_them() -> None:
    listener = Listener(factor=0.5)
    with tapped(listener):
        value, grads = jax.value_and_grad(with_aux, has_aux=True)(W, X)
    assert np.array_equal(grads, 0.5 * jax.grad(loss)(W))
    assert float(listener.losses[0]) == float(value[0]) == float(loss(W))
    assert listener.calls[0].params is W


def test_the_listener_may_replace_what_is_differentiated() -> None:
    class Doubles(GradientListener):
        @override
        def loss_function(self, call: Call) -> Callable[..., Any]:
            return lambda *args: 2 * call.fun(*args)

    with tapped(Doubles()):
        value, grads = jax.value_and_grad(loss)(W)
    assert (float(value), float(grads.sum())) == (2 * float(loss(W)), 2 * float(jax.grad(loss)(W).sum()))


def test_a_gradient_within_a_gradient_and_a_holomorphic_one_are_jaxs_own() -> None:
    listener = Listener()
    with tapped(listener):
        jax.grad(lambda w: jnp.sum(jax.grad(loss)(w) ** 2))(W)
        assert len(listener.calls) == 1
        jax.grad(lambda z: z * z, holomorphic=True)(jnp.complex64(1 + 2j))
        assert len(listener.calls) == 1
        jax.hessian(loss)(W)  # takes none with jax.grad
        assert len(listener.calls) == 1


def test_a_loss_is_known_by_its_code_wherever_it_is_made_anew() -> None:
    eqx: Any = pytest.importorskip("equinox")

    listener = Listener()
    model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    with tapped(listener):
        for _ in range(2):
            jax.grad(lambda w: loss(w))(W)
            jax.grad(lambda w: 2 * loss(w))(W)
            eqx.filter_grad(lambda m: jnp.sum(m(X[0])))(model)
            eqx.filter_grad(lambda m: jnp.sum(m(X[1])))(model)
    keys = [call.key for call in listener.calls]
    assert keys[:4] == keys[4:]
    assert len(set(keys)) == 4


def test_a_failing_loss_leaves_the_tap_working() -> None:
    def fails(w: Any) -> Any:
        raise ValueError("mine")

    listener = Listener()
    with tapped(listener):
        with pytest.raises(ValueError, match="mine"):
            jax.grad(fails)(W)
        jax.grad(loss)(W)
    assert len(listener.calls) == 1


def test_undoing_leaves_jax_as_it_was() -> None:
    before = jax.grad, jax.value_and_grad, jax.vjp
    with tapped(Listener(), made_before=True):
        assert jax.grad is not before[0]
    assert (jax.grad, jax.value_and_grad, jax.vjp) == before


@pytest.mark.parametrize("made_before", [False, True])
def test_functions_made_before_are_seen_where_asked(made_before: bool) -> None:
    grad, both = jax.grad(loss), jax.value_and_grad(with_aux, has_aux=True, argnums=(1, 0))
    alone = grad(W), both(W, X)
    listener = Listener()
    with tapped(listener, made_before):
        watched = grad(W), both(W, X)
        jax.grad(loss)(W)  # made since: seen in any case, and once
    assert len(listener.calls) == (3 if made_before else 1)
    for before, after in zip(jax.tree.leaves(alone), jax.tree.leaves(watched), strict=True):
        assert before == after if isinstance(before, str) else np.array_equal(before, after)


KERAS = """
import json
import jax, numpy as np
from floatwise.jax.script.gradient_tap import GradientListener, GradientTap
from floatwise.tap.patches import Patches

class Counts(GradientListener):
    losses = []
    def gradients(self, call, loss, grads):
        jax.debug.callback(lambda value: self.losses.append(float(value)), loss)
        return grads

tap = GradientTap(Patches(), Counts())
import keras
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 3), "float32"), np.ones((8, 1), "float32"), batch_size=4, epochs=2, verbose=0)
jax.effects_barrier()
print(json.dumps([tap.calls, len(Counts.losses)]))
"""


def test_keras_trainer_goes_through_the_tap(tmp_path: Any) -> None:
    traced, steps = run_program(KERAS, tmp_path, KERAS_BACKEND="jax")
    assert traced >= 1
    assert steps == 4
