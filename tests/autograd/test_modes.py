"""no_grad and its kin, in blocks, on functions, on generators, and in threads."""

import threading

import pytest

X = [0.5, 1.5, 2.0]


def recording(lib):
    return (lib.leaf(X) * 2).requires_grad


def test_blocks_nest_and_come_back(lib):
    assert recording(lib)
    with lib.no_grad():
        assert not recording(lib)
        with lib.enable_grad():
            assert recording(lib)
            with lib.set_grad_enabled(False):
                assert not recording(lib)
        assert not lib.is_grad_enabled()
    assert recording(lib)


def test_an_error_brings_the_mode_back(lib):
    with pytest.raises(ZeroDivisionError), lib.no_grad():
        raise ZeroDivisionError
    assert recording(lib)


def test_one_object_for_several_blocks(lib):
    off = lib.no_grad()
    for _ in range(2):
        with off:
            assert not recording(lib)
        assert recording(lib)


def test_set_grad_enabled_at_once(lib):
    lib.set_grad_enabled(False)
    assert not recording(lib)
    lib.set_grad_enabled(True)
    assert recording(lib)


def test_decorated_functions(lib):
    @lib.no_grad()
    def off(depth):
        assert not recording(lib)
        return off(depth - 1) if depth else "done"

    @lib.set_grad_enabled(False)
    def also_off():
        return recording(lib)

    assert off(3) == "done"
    assert off.__name__ == "off"
    assert not also_off()
    assert recording(lib)


def test_a_decorator_without_parentheses(lib):
    @lib.no_grad
    def off():
        return recording(lib)

    assert not off()
    assert recording(lib)


def test_generators_keep_their_mode_to_themselves(lib):
    closed = []

    @lib.no_grad()
    def items():
        try:
            actual = yield recording(lib)
            try:
                yield actual
            except KeyError:
                yield recording(lib)
        finally:
            closed.append(recording(lib))
        return "end"

    generator = items()
    assert next(generator) is False
    assert recording(lib)
    assert generator.send(5) == 5
    assert generator.throw(KeyError()) is False
    assert recording(lib)
    generator.close()
    assert closed == [False]
    assert recording(lib)


def test_inference_mode(lib):
    with lib.inference_mode():
        assert not lib.is_grad_enabled()
        assert lib.autograd.is_inference_mode_enabled() if lib.name == "flow" else True
        y = lib.leaf(X, requires_grad=False) * 2
        assert not y.requires_grad
        with lib.inference_mode(False):
            assert recording(lib)

    @lib.inference_mode()
    def off():
        return lib.is_grad_enabled()

    assert not off()
    assert recording(lib)


def test_enable_grad_has_no_effect_in_inference_mode(flow):
    with flow.inference_mode(), flow.enable_grad():
        assert not recording(flow)


def test_modes_belong_to_a_thread(lib):
    values = {}
    inside, go_on = threading.Event(), threading.Event()

    def other():
        values["at start"] = recording(lib)
        with lib.no_grad():
            inside.set()
            go_on.wait(200)
            values["inside"] = recording(lib)

    with lib.no_grad():
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(200)
        with lib.enable_grad():
            values["here"] = recording(lib)
        go_on.set()
        thread.join()
        assert not recording(lib)
    assert values == {"at start": True, "here": True, "inside": False}
    assert recording(lib)


def test_gradients_are_not_recorded_unless_asked(lib):
    x = lib.leaf(X)
    modes = []
    x.register_hook(lambda g: modes.append(lib.is_grad_enabled()))
    (x * x).sum().backward()
    (x * x).sum().backward(create_graph=True)
    assert modes == [False, True]
