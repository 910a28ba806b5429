"""Settings: from the environment, attributes and blocks. Errors: the meaning of each status."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

from flowvm import errors
from flowvm.config import VARIABLES, Config
from flowvm.errors import ConfigError, Status, declare_status, exception_for


def config(**environ: str) -> Config:
    return Config({f"FLOWVM_{name.upper()}": value for name, value in environ.items()})


def test_defaults_need_no_environment() -> None:
    settings = config()
    assert settings.engine == "threaded"
    assert settings.workers >= 1
    assert settings.cache_dir.name == "flowvm"
    assert set(settings.as_dict()) == {variable.name for variable in VARIABLES}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("engine", "sequential", "sequential"),
        ("debug", "2", 2),
        ("workers", "3", 3),
        ("cache_dir", "some/where", Path("some/where")),
        ("run_ahead_bytes", "64M", 64 << 20),
        ("run_ahead_bytes", "1.5GiB", 3 << 29),
        ("run_ahead_bytes", "4096", 4096),
        ("memory", "0.5", 0.5),
        ("memory", "1.5G", 3 << 29),
        ("watchdog", "0.5", 0.5),
        ("sync", "true", True),
        ("sync", "0", False),
        ("engine", "threaded", "threaded"),
        ("debug", "", 0),
    ],
)
def test_a_variable_is_parsed(name: str, text: str, value: Any) -> None:
    parsed = getattr(config(**{name: text}), name)
    assert parsed == value
    assert type(parsed) is type(value) or isinstance(parsed, Path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("engine", "fast"),
        ("debug", "5"),
        ("debug", "two"),
        ("workers", "0"),
        ("workers", "1.5"),
        ("run_ahead_bytes", "-1"),
        ("run_ahead_bytes", "lots"),
        ("memory", "1.5"),
        ("memory", "-2G"),
        ("watchdog", "nan"),
        ("sync", "maybe"),
    ],
)
def test_a_bad_value_names_the_variable_and_what_it_expects(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"FLOWVM_{name.upper()} = '{text}' .* expected "):
        config(**{name: text})


def test_an_unknown_variable_warns_with_a_suggestion() -> None:
    with pytest.warns(UserWarning, match=r"FLOWVM_WORKER; did you mean 'FLOWVM_WORKERS'\?"):
        config(worker="2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config({"OTHER": "1"})


def test_an_attribute_is_checked_and_a_wrong_name_suggests() -> None:
    settings = config()
    settings.debug = 3
    assert settings.debug == 3
    with pytest.raises(ConfigError, match=r"flow\.config\.debug = 9"):
        settings.debug = 9
    with pytest.raises(AttributeError, match=r"'debgu'; did you mean 'debug'\?"):
        settings.debgu = 1  # type: ignore[attr-defined]


def test_a_block_puts_back_what_was_there() -> None:
    settings = config(debug="1")
    with settings(debug=2, watchdog=0) as inside:
        assert (inside.debug, inside.watchdog) == (2, 0)
        with settings(debug=4):
            assert settings.debug == 4
        assert settings.debug == 2
    assert (settings.debug, settings.watchdog) == (1, 10)
    with pytest.raises(ZeroDivisionError), settings(debug=3):
        raise ZeroDivisionError
    assert settings.debug == 1


def test_who_listens_hears_of_each_change() -> None:
    settings, values = config(), []
    settings.on_change("debug", values.append)
    settings.watchdog = 1
    with settings(debug=2):
        assert values == [2]
    assert values == [2, 0]


def test_a_bad_block_changes_nothing() -> None:
    settings = config()
    with pytest.raises(ConfigError):
        settings(watchdog=1, debug=99)
    assert settings.watchdog == 10


def test_a_start_setting_is_locked_by_the_vm() -> None:
    settings = config(run_ahead="200")
    settings.lock("the VM has started")
    settings.run_ahead = 200  # no change, no complaint
    settings.debug = 1
    with pytest.raises(ConfigError, match="the VM has started"):
        settings.run_ahead = 100
    settings.lock("")
    settings.run_ahead = 100


def test_printing_the_settings_documents_each() -> None:
    table = repr(config(debug="3"))
    for variable in VARIABLES:
        assert f"# {variable.env}, {variable.expects}: {variable.help}" in table
        assert variable.name in Config.__annotations__
    assert "debug=3," in table


def test_a_status_becomes_the_exception_a_user_would_catch() -> None:
    error = exception_for(Status.INDEX_OUT_OF_RANGE, (512, 500, 0))
    assert isinstance(error, IndexError)
    assert str(error) == "index 512 is out of bounds for dimension 0 with size 500"


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.OK, Status.USER_STATUS)])
def test_every_status_has_an_exception_and_a_message(status: Status) -> None:
    error = exception_for(status)
    assert isinstance(error, errors.FlowError)
    assert "{" not in str(error)


def test_a_status_of_a_user_kernel() -> None:
    assert isinstance(exception_for(99, (1, 2)), errors.KernelError)
    code = declare_status(70, errors.InvalidValueError, "sqrt of a negative number at element {0}")
    assert str(exception_for(code, (5,))) == "sqrt of a negative number at element 5"
    assert declare_status(70, errors.InvalidValueError, "sqrt of a negative number at element {0}")
    with pytest.raises(errors.ArgumentError, match="declared already"):
        declare_status(70, errors.InvalidValueError, "another meaning")
    with pytest.raises(errors.ArgumentError, match="flowvm's own"):
        declare_status(3, errors.InvalidValueError, "x")


def test_every_exception_is_in_the_tree_and_pickles() -> None:
    for name in errors.__all__:
        thing = getattr(errors, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            assert issubclass(thing, errors.FlowError)
            assert f" {name} " in (errors.__doc__ or "") + " " or name == "FlowError"
            again = pickle.loads(pickle.dumps(thing("said")))
            assert (type(again), str(again)) == (thing, "said")
