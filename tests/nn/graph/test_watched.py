"""Python values that captured code reads: each way to read one, and to change it, is noticed.

A kind is a function that makes (function of a tensor, what changes the value it reads).  The
function is called as a graph, the value is changed, and the next call gives what eager code gives.
"""

from __future__ import annotations

import abc
import array
import collections
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import itertools
import logging
import math
import operator
import os
import random
import signal
import sys
import threading
import time
import types
import warnings
import weakref

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import CaptureWarning, RecaptureWarning
from flowvm.nn.graph import guards

nn = flow.nn

pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")

KINDS = {}
SCALE, TABLE = 2.0, {"k": 2.0}


def kind(make):
    """Enter a kind by its name."""
    KINDS[make.__name__] = make
    return make


class Plain:
    """An object with attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def plain_class(**attributes):
    """A class of its own."""
    return type("Settings", (), attributes)


# --- attributes -----------------------------------------------------------------------------------


@kind
def instance_attribute():
    n = Plain(k=2.0)
    return lambda x: x * n.k, lambda: setattr(n, "k", 9.0)


@kind
def nested_attribute():
    n = Plain(cfg=Plain(t=Plain(k=2.0)))
    return lambda x: x * n.cfg.t.k, lambda: setattr(n.cfg.t, "k", 9.0)


@kind
def nested_object_replaced():
    n = Plain(cfg=Plain(k=2.0))
    return lambda x: x * n.cfg.k, lambda: setattr(n, "cfg", Plain(k=9.0))


@kind
def class_attribute():
    kind = plain_class(k=2.0)
    n = kind()
    return lambda x: x * n.k, lambda: setattr(kind, "k", 9.0)


@kind
def class_attribute_of_a_base():
    base = plain_class(k=2.0)
    n = type("Sub", (base,), {})()
    return lambda x: x * n.k, lambda: setattr(base, "k", 9.0)


@kind
def class_attribute_overridden_by_a_subclass():
    kind = type("Sub", (plain_class(k=2.0),), {})
    n = kind()
    return lambda x: x * n.k, lambda: setattr(kind, "k", 9.0)


@kind
def class_attribute_covered_by_an_instances():
    n = Plain(cfg=plain_class(t=2.0)())
    return lambda x: x * n.cfg.t, lambda: setattr(n.cfg, "t", 9.0)


@kind
def instance_attribute_deleted_over_a_class_attribute():
    n = plain_class(k=9.0)()
    n.k = 2.0
    return lambda x: x * n.k, lambda: delattr(n, "k")


@kind
def class_attribute_of_the_class():
    kind = plain_class(k=2.0)
    return lambda x: x * kind.k, lambda: setattr(kind, "k", 9.0)


@kind
def instance_dict():
    n = Plain(k=2.0)
    return lambda x: x * n.k, lambda: n.__dict__.update(k=9.0)


@kind
def instance_dict_read():
    n = Plain(k=2.0)
    return lambda x: x * vars(n)["k"], lambda: setattr(n, "k", 9.0)


@kind
def class_of_the_instance():
    n = plain_class(k=2.0)()
    return lambda x: x * n.k, lambda: setattr(n, "__class__", plain_class(k=9.0))


@kind
def class_of_the_instance_by_a_method():
    n = plain_class(f=lambda self: 2.0)()
    return lambda x: x * n.f(), lambda: setattr(n, "__class__", plain_class(f=lambda self: 9.0))


@kind
def slots():
    n = type("Slotted", (), {"__slots__": ("k",)})()
    n.k = 2.0
    return lambda x: x * n.k, lambda: setattr(n, "k", 9.0)


@kind
def getattr_builtin():
    n = Plain(k=2.0)
    return lambda x: x * getattr(n, "k"), lambda: setattr(n, "k", 9.0)  # noqa: B009


@kind
def getattr_with_a_default():
    n = Plain()
    return lambda x: x * getattr(n, "k", 2.0), lambda: setattr(n, "k", 9.0)


@kind
def hasattr_builtin():
    n = Plain()
    return lambda x: x * (9.0 if hasattr(n, "k") else 2.0), lambda: setattr(n, "k", 1)


@kind
def attribute_caught_by_try():
    n = Plain()

    def function(x):
        try:
            return x * n.k
        except AttributeError:
            return x * 2.0

    return function, lambda: setattr(n, "k", 9.0)


@kind
def attrgetter():
    n, get = Plain(cfg=Plain(k=2.0)), operator.attrgetter("cfg.k")
    return lambda x: x * get(n), lambda: setattr(n.cfg, "k", 9.0)


@kind
def dataclass():
    n = dataclasses.make_dataclass("Config", [("k", float)])(2.0)
    return lambda x: x * n.k, lambda: setattr(n, "k", 9.0)


@kind
def dataclass_default():
    config = dataclasses.make_dataclass("Config", [("k", float, 2.0)])
    return lambda x: x * config.k, lambda: setattr(config, "k", 9.0)


@kind
def dataclass_asdict():
    n = dataclasses.make_dataclass("Config", [("k", float)])(2.0)
    return lambda x: x * dataclasses.asdict(n)["k"], lambda: setattr(n, "k", 9.0)


@kind
def simple_namespace():
    n = types.SimpleNamespace(k=2.0)
    return lambda x: x * n.k, lambda: setattr(n, "k", 9.0)


@kind
def named_tuple_replaced():
    row = collections.namedtuple("Row", "k")
    n = Plain(row=row(2.0))
    return lambda x: x * n.row.k, lambda: setattr(n, "row", row(9.0))


@kind
def module_attribute():
    module = types.ModuleType("cfg")
    module.k = 2.0
    return lambda x: x * module.k, lambda: setattr(module, "k", 9.0)


@kind
def function_attribute():
    def settings():
        pass

    settings.k = 2.0
    return lambda x: x * settings.k, lambda: setattr(settings, "k", 9.0)


@kind
def enum_member():
    class Mode(enum.Enum):
        SLOW, FAST = 2.0, 9.0

    n = Plain(mode=Mode.SLOW)
    return lambda x: x * n.mode.value, lambda: setattr(n, "mode", Mode.FAST)


@kind
def thread_local():
    n = threading.local()
    n.k = 2.0
    return lambda x: x * n.k, lambda: setattr(n, "k", 9.0)


@kind
def attribute_in_a_comprehension():
    parts = [Plain(k=1.0), Plain(k=1.0)]
    return lambda x: x * sum([p.k for p in parts]), lambda: setattr(parts[1], "k", 9.0)


@kind
def attribute_in_a_generator():
    parts = [Plain(k=1.0), Plain(k=1.0)]
    return lambda x: x * sum(p.k for p in parts), lambda: setattr(parts[1], "k", 9.0)


@kind
def attribute_behind_an_or():
    n, none = Plain(k=2.0), None
    return lambda x: x * (none or n).k, lambda: setattr(n, "k", 9.0)


@kind
def attribute_of_what_a_call_gives():
    n = Plain(k=2.0)
    table = {"n": n}
    return lambda x: x * table.get("n").k, lambda: setattr(n, "k", 9.0)


@kind
def attribute_by_match():
    class Point:
        __match_args__ = ("k",)

        def __init__(self, k):
            self.k = k

    n = Point(2.0)

    def function(x):
        match n:
            case Point(k):
                return x * k

    return function, lambda: setattr(n, "k", 9.0)


# --- code that computes attributes ----------------------------------------------------------------


@kind
def property_by_what_it_reads():
    n = type("P", (), {"k": property(lambda self: self.own)})()
    n.own = 2.0
    return lambda x: x * n.k, lambda: setattr(n, "own", 9.0)


@kind
def property_replaced():
    kind = plain_class(k=property(lambda self: 2.0))
    n = kind()
    return lambda x: x * n.k, lambda: setattr(kind, "k", property(lambda self: 9.0))


@kind
def getattr_method():
    class Holder:
        def __init__(self):
            self.values = {"k": 2.0}

        def __getattr__(self, name):
            return self.values[name]

    n = Holder()
    return lambda x: x * n.k, lambda: n.values.update(k=9.0)


@kind
def getattr_method_covered():
    n = type("G", (), {"__getattr__": lambda self, name: 2.0})()
    return lambda x: x * n.k, lambda: setattr(n, "k", 9.0)


@kind
def getattr_method_replaced():
    kind = type("G", (), {"__getattr__": lambda self, name: 2.0})
    n = kind()
    return lambda x: x * n.k, lambda: setattr(kind, "__getattr__", lambda self, name: 9.0)


@kind
def getattribute_method():
    class Holder:
        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

    n = Holder()
    n.k = 2.0
    return lambda x: x * n.k, lambda: setattr(n, "k", 9.0)


@kind
def attribute_dict():
    class Attributes(dict):
        __getattr__ = dict.__getitem__

    n = Attributes(k=2.0)
    return lambda x: x * n.k, lambda: n.update(k=9.0)


@kind
def descriptor():
    class Field:
        def __get__(self, thing, owner):
            return thing.own

    n = type("D", (), {"k": Field()})()
    n.own = 2.0
    return lambda x: x * n.k, lambda: setattr(n, "own", 9.0)


@kind
def descriptor_replaced():
    class Field:
        def __init__(self, value):
            self.value = value

        def __get__(self, thing, owner):
            return self.value

        def __set__(self, thing, value):
            raise AssertionError

    kind = plain_class(k=Field(2.0))
    n = kind()
    return lambda x: x * n.k, lambda: setattr(kind, "k", Field(9.0))


@kind
def cached_property():
    class Lazy:
        @functools.cached_property
        def k(self):
            return 2.0

    n = Lazy()
    return lambda x: x * n.k, lambda: n.__dict__.update(k=9.0)


@kind
def metaclass_property():
    class Meta(type):
        own = 2.0

        @property
        def k(cls):
            return cls.own

    kind = Meta("K", (), {})
    return lambda x: x * kind.k, lambda: setattr(Meta, "own", 9.0)


@kind
def operator_method_of_a_class():
    kind = type("O", (), {"__mul__": lambda self, other: 2.0 * other})
    n = kind()
    return lambda x: x * (n * 1.0), lambda: setattr(kind, "__mul__", lambda self, other: 9.0)


@kind
def item_method_of_a_class():
    class Table:
        def __init__(self):
            self.own = 2.0

        def __getitem__(self, key):
            return self.own

    n = Table()
    return lambda x: x * n["any"], lambda: setattr(n, "own", 9.0)


@kind
def truth_of_an_object():
    class Flag:
        on = False

        def __bool__(self):
            return self.on

    n = Flag()
    return lambda x: x * (9.0 if n else 2.0), lambda: setattr(n, "on", True)


@kind
def context_manager():
    class Region:
        k = 2.0

        def __enter__(self):
            return self.k

        def __exit__(self, *error):
            pass

    n = Region()

    def function(x):
        with n as k:
            return x * k

    return function, lambda: setattr(Region, "k", 9.0)


@kind
def context_manager_of_a_generator():
    n = Plain(k=2.0)

    @contextlib.contextmanager
    def region():
        yield n.k

    def function(x):
        with region() as k:
            return x * k

    return function, lambda: setattr(n, "k", 9.0)


# --- functions ------------------------------------------------------------------------------------


@kind
def method_set_on_an_instance():
    n = plain_class(f=lambda self, x: x * 2.0)()
    return lambda x: n.f(x), lambda: setattr(n, "f", lambda x: x * 9.0)


@kind
def method_replaced_in_the_class():
    kind = plain_class(f=lambda self, x: x * 2.0)
    n = kind()
    return lambda x: n.f(x), lambda: setattr(kind, "f", lambda self, x: x * 9.0)


@kind
def static_method_replaced():
    kind = plain_class(f=staticmethod(lambda x: x * 2.0))
    n = kind()
    return lambda x: n.f(x), lambda: setattr(kind, "f", staticmethod(lambda x: x * 9.0))


@kind
def static_method_of_the_class_replaced():
    kind = plain_class(f=staticmethod(lambda x: x * 2.0))
    return lambda x: kind.f(x), lambda: setattr(kind, "f", staticmethod(lambda x: x * 9.0))


@kind
def class_method_replaced():
    kind = plain_class(f=classmethod(lambda cls, x: x * 2.0))
    return lambda x: kind.f(x), lambda: setattr(kind, "f", classmethod(lambda cls, x: x * 9.0))


@kind
def class_method_by_what_it_reads():
    kind = plain_class(k=2.0, f=classmethod(lambda cls, x: x * cls.k))
    n = kind()
    return lambda x: n.f(x), lambda: setattr(kind, "k", 9.0)


@kind
def method_of_super_replaced():
    class Base:
        def f(self, x):
            return x * 2.0

    class Sub(Base):
        def f(self, x):
            return super().f(x) + 0

    n = Sub()
    return lambda x: n.f(x), lambda: setattr(Base, "f", lambda self, x: x * 9.0)


@kind
def code_replaced():
    def scaled(x):
        return x * 2.0

    def other(x):
        return x * 9.0

    return lambda x: scaled(x), lambda: setattr(scaled, "__code__", other.__code__)


@kind
def code_of_the_function_itself_replaced():
    def scaled(x):
        return x * 2.0

    def other(x):
        return x * 9.0

    return scaled, lambda: setattr(scaled, "__code__", other.__code__)


@kind
def code_of_a_method_replaced():
    kind = plain_class(f=lambda self, x: x * 2.0)
    n, other = kind(), lambda self, x: x * 9.0
    return lambda x: n.f(x), lambda: setattr(kind.f, "__code__", other.__code__)


@kind
def default_that_is_mutable():
    def scaled(x, k=[2.0]):  # noqa: B006
        return x * k[0]

    return lambda x: scaled(x), lambda: scaled.__defaults__[0].__setitem__(0, 9.0)


@kind
def default_replaced():
    def scaled(x, k=2.0):
        return x * k

    return lambda x: scaled(x), lambda: setattr(scaled, "__defaults__", (9.0,))


@kind
def default_of_a_keyword_replaced():
    def scaled(x, *, k=2.0):
        return x * k

    return lambda x: scaled(x), lambda: scaled.__kwdefaults__.update(k=9.0)


@kind
def default_of_the_function_itself():
    def scaled(x, k=[2.0]):  # noqa: B006
        return x * k[0]

    return scaled, lambda: scaled.__defaults__[0].__setitem__(0, 9.0)


@kind
def partial_keywords():
    part = functools.partial(lambda x, k: x * k, k=2.0)
    return lambda x: part(x), lambda: part.keywords.update(k=9.0)


@kind
def partial_compiled():
    part = functools.partial(lambda x, k: x * k, k=2.0)
    return part, lambda: part.keywords.update(k=9.0)


@kind
def partial_arguments():
    part = functools.partial(lambda k, x: x * k[0], [2.0])
    return lambda x: part(x), lambda: part.args[0].__setitem__(0, 9.0)


@kind
def partial_state():
    part = functools.partial(lambda k, x: x * k, 2.0)

    def change():
        part.__setstate__((part.func, (9.0,), {}, None))

    return lambda x: part(x), change


@kind
def callable_object():
    kind = type("C", (), {"__call__": lambda self, x: x * 2.0})
    n = kind()
    return lambda x: n(x), lambda: setattr(kind, "__call__", lambda self, x: x * 9.0)


@kind
def callable_object_compiled():
    kind = type("C", (), {"k": 2.0, "__call__": lambda self, x: x * self.k})
    n = kind()
    return n, lambda: setattr(kind, "k", 9.0)


@kind
def function_of_a_table():
    table = {"f": lambda x: x * 2.0}
    return lambda x: table["f"](x), lambda: table.update(f=lambda x: x * 9.0)


@kind
def function_given_to_map():
    n = Plain(k=2.0)

    def scaled(x):
        return x * n.k

    return lambda x: next(map(scaled, [x])), lambda: setattr(n, "k", 9.0)


@kind
def function_of_a_decorator():
    n = Plain(k=2.0)

    def doubled(function):
        @functools.wraps(function)
        def inner(x):
            return function(x) * n.k

        return inner

    scaled = doubled(lambda x: x + 0)
    return lambda x: scaled(x), lambda: setattr(n, "k", 9.0)


@kind
def closure_variable():
    k = 2.0

    def change():
        nonlocal k
        k = 9.0

    return lambda x: x * k, change


@kind
def closure_variable_of_a_function_inside():
    k = 2.0

    def change():
        nonlocal k
        k = 9.0

    def function(x):
        def inner():
            return x * k

        return inner()

    return function, change


@kind
def global_variable():
    def change():
        global SCALE
        SCALE = 9.0

    global SCALE
    SCALE = 2.0
    return lambda x: x * SCALE, change


@kind
def global_table():
    TABLE["k"] = 2.0
    return lambda x: x * TABLE["k"], lambda: TABLE.update(k=9.0)


@kind
def builtin_covered_by_a_global():
    globals().pop("abs", None)
    return lambda x: x * abs(-2.0), lambda: globals().update(abs=lambda v: 9.0)


# --- containers -----------------------------------------------------------------------------------


@kind
def list_item():
    k = [2.0]
    return lambda x: x * k[0], lambda: k.__setitem__(0, 9.0)


@kind
def list_item_of_many():
    k = [2.0] * 5000
    return lambda x: x * k[4000], lambda: k.__setitem__(4000, 9.0)


@kind
def list_length():
    k = [1, 2]
    return lambda x: x * len(k), lambda: k.extend([1] * 7)


@kind
def list_emptied():
    k = [1]
    return lambda x: x * (2.0 if k else 9.0), lambda: k.clear()


@kind
def list_iterated():
    k = [1.0, 1.0]

    def function(x):
        for v in k:
            x = x * v
        return x

    return function, lambda: k.append(9.0)


@kind
def list_unpacked():
    k = [1.0, 2.0]

    def function(x):
        _, v = k
        return x * v

    return function, lambda: k.__setitem__(1, 9.0)


@kind
def list_spread():
    k = [2.0]
    scaled = lambda x, v: x * v  # noqa: E731
    return lambda x: scaled(x, *k), lambda: k.__setitem__(0, 9.0)


@kind
def list_slice():
    k = [1.0, 2.0]
    return lambda x: x * k[1:][0], lambda: k.__setitem__(1, 9.0)


@kind
def list_membership():
    k = [1]
    return lambda x: x * (9.0 if 5 in k else 2.0), lambda: k.append(5)


@kind
def list_compared():
    k = [1]
    return lambda x: x * (2.0 if k == [1] else 9.0), lambda: k.append(5)


@kind
def list_given_to_a_tensor():
    k = [2.0]
    return lambda x: x * flow.tensor(k), lambda: k.__setitem__(0, 9.0)


@kind
def list_in_a_list_given_to_a_tensor():
    k = [2.0]
    return lambda x: x * flow.tensor([k])[0], lambda: k.__setitem__(0, 9.0)


@kind
def list_zipped():
    k = [2.0]
    return lambda x: next(x * v for _, v in zip([1], k, strict=True)), lambda: k.__setitem__(0, 9.0)


@kind
def list_in_a_tuple():
    k = ([2.0],)
    return lambda x: x * k[0][0], lambda: k[0].__setitem__(0, 9.0)


@kind
def list_in_a_list():
    k = [[[2.0]]]
    return lambda x: x * k[0][0][0], lambda: k[0][0].__setitem__(0, 9.0)


@kind
def dict_item():
    k = {"a": 2.0}
    return lambda x: x * k["a"], lambda: k.update(a=9.0)


@kind
def dict_get():
    k = {}
    return lambda x: x * k.get("a", 2.0), lambda: k.update(a=9.0)


@kind
def dict_membership():
    k = {}
    return lambda x: x * (9.0 if "a" in k else 2.0), lambda: k.update(a=9.0)


@kind
def dict_iterated():
    k = {"a": 2.0}
    return lambda x: x * sum(v for _, v in k.items()), lambda: k.update(b=7.0)


@kind
def dict_values():
    k = {"a": 2.0}
    return lambda x: x * max(k.values()), lambda: k.update(a=9.0)


@kind
def dict_order():
    k = {2.0: 0, 9.0: 0}
    return lambda x: x * next(iter(k)), lambda: k.update({2.0: k.pop(2.0)})


@kind
def generator_of_numpys():
    k = np.random.default_rng(1)
    before = k.bit_generator.state
    return lambda x: x * k.random(), lambda: setattr(k.bit_generator, "state", before)


@kind
def keys_of_a_dict_kept():
    d = {"a": 2.0}
    k = d.keys()
    return lambda x: x * (2 if "b" in k else 3), lambda: d.update(b=9.0)


@kind
def values_of_a_dict_kept():
    d = {"a": 2.0}
    k = d.values()
    return lambda x: x * sum(k), lambda: d.update(a=9.0)


@kind
def class_registered_later():
    kind_of = abc.ABCMeta("kind_of", (), {})

    class Thing:
        pass

    return lambda x: x * (2 if isinstance(Thing(), kind_of) else 3), lambda: kind_of.register(Thing)


@kind
def recursion_limit():
    limit = sys.getrecursionlimit()

    def k(x):
        return x * (2 if sys.getrecursionlimit() == limit else 3)

    def change():
        sys.setrecursionlimit(limit + 1)

    return k, change


@kind
def gradient_kept_later():
    k = flow.ones(3, requires_grad=True) * 1
    return lambda x: x * (2 if k.retains_grad else 3), k.retain_grad


@kind
def dict_as_keywords():
    k = {"v": 2.0}
    scaled = lambda x, v: x * v  # noqa: E731
    return lambda x: scaled(x, **k), lambda: k.update(v=9.0)


@kind
def dict_copied():
    k = {"v": {"w": 2.0}}
    return lambda x: x * copy.deepcopy(k)["v"]["w"], lambda: k["v"].update(w=9.0)


@kind
def dict_of_objects():
    k = {"n": Plain(k=2.0)}
    return lambda x: x * k["n"].k, lambda: setattr(k["n"], "k", 9.0)


@kind
def ordered_dict():
    k = collections.OrderedDict(a=2.0, b=9.0)
    return lambda x: x * next(iter(k.values())), lambda: k.move_to_end("a")


@kind
def default_dict():
    k = collections.defaultdict(float, a=2.0)
    return lambda x: x * k["a"], lambda: k.update(a=9.0)


@kind
def counter():
    k = collections.Counter("aa")
    return lambda x: x * k["a"], lambda: k.update("aaaaaaa")


@kind
def chain_map():
    k = {"a": 2.0}
    chain = collections.ChainMap({}, k)
    return lambda x: x * chain["a"], lambda: k.update(a=9.0)


@kind
def user_dict():
    k = collections.UserDict(a=2.0)
    return lambda x: x * k["a"], lambda: k.update(a=9.0)


@kind
def mapping_proxy():
    k = {"a": 2.0}
    proxy = types.MappingProxyType(k)
    return lambda x: x * proxy["a"], lambda: k.update(a=9.0)


@kind
def set_membership():
    k = {1}
    return lambda x: x * (9.0 if 5 in k else 2.0), lambda: k.add(5)


@kind
def set_length():
    k = {1, 2}
    return lambda x: x * len(k), lambda: k.update(range(9))


@kind
def deque():
    k = collections.deque([2.0])
    return lambda x: x * k[-1], lambda: k.append(9.0)


@kind
def item_getter():
    k, get = {"a": 2.0}, operator.itemgetter("a")
    return lambda x: x * get(k), lambda: k.update(a=9.0)


@kind
def array_of_python():
    k = array.array("d", [2.0])
    return lambda x: x * k[0], lambda: k.__setitem__(0, 9.0)


@kind
def bytes_array():
    k = bytearray(b"\2")
    return lambda x: x * k[0], lambda: k.__setitem__(0, 9)


@kind
def memory_view():
    k = bytearray(b"\2")
    view = memoryview(k)
    return lambda x: x * view[0], lambda: k.__setitem__(0, 9)


@kind
def array_of_ctypes():
    k = (ctypes.c_double * 2)(2.0, 3.0)
    return lambda x: x * k[1], lambda: k.__setitem__(1, 9.0)


@kind
def structure_of_ctypes():
    class Pair(ctypes.Structure):
        _fields_ = (("k", ctypes.c_int), ("nbytes", ctypes.c_int))

    pair = Pair(2, 1)
    return lambda x: x * pair.k, lambda: setattr(pair, "k", 9)


@kind
def numpy_array():
    k = np.array([2.0])
    return lambda x: x * float(k[0]), lambda: k.__setitem__(0, 9.0)


@kind
def numpy_array_reduced():
    k = np.array([1.0, 1.0])
    return lambda x: x * float(k.sum()), lambda: k.__setitem__(0, 8.0)


@kind
def numpy_function_of_an_array():
    k = np.array([2.0, 2.0])
    return lambda x: x * float(np.mean(k)), lambda: k.fill(9.0)


@kind
def numpy_array_given_to_a_tensor():
    k = np.array([2.0], np.float32)
    return lambda x: x * flow.tensor(k), lambda: k.__setitem__(0, 9.0)


# --- values ---------------------------------------------------------------------------------------


@kind
def numpy_scalar():
    n = Plain(k=np.float32(2.0))
    return lambda x: x * float(n.k), lambda: setattr(n, "k", np.float32(9.0))


@kind
def negative_zero():
    n = Plain(k=0.0)
    return lambda x: x * n.k, lambda: setattr(n, "k", -0.0)


@kind
def bool_and_int():
    n = Plain(k=True)
    return lambda x: x * (2.0 if n.k is True else 9.0), lambda: setattr(n, "k", 1)


@kind
def none_and_number():
    n = Plain(k=None)
    return lambda x: x * (2.0 if n.k is None else n.k), lambda: setattr(n, "k", 9.0)


@kind
def string():
    n = Plain(mode="add")
    return lambda x: x + 2 if n.mode == "add" else x * 9.0, lambda: setattr(n, "mode", "mul")


@kind
def fraction():
    n = Plain(k=fractions.Fraction(2))
    return lambda x: x * float(n.k), lambda: setattr(n, "k", fractions.Fraction(9))


@kind
def decimal_number():
    n = Plain(k=decimal.Decimal(2))
    return lambda x: x * float(n.k), lambda: setattr(n, "k", decimal.Decimal(9))


@kind
def date():
    n = Plain(day=datetime.date(2020, 1, 2))
    return lambda x: x * n.day.day, lambda: setattr(n, "day", datetime.date(2020, 1, 9))


@kind
def tensor_attribute_replaced():
    n = Plain(k=flow.full((3,), 2.0))
    return lambda x: x * n.k, lambda: setattr(n, "k", flow.full((3,), 9.0))


@kind
def tensor_in_a_class():
    kind = plain_class(k=flow.full((3,), 2.0))
    n = kind()
    return lambda x: x * n.k, lambda: setattr(kind, "k", flow.full((3,), 9.0))


@kind
def tensor_in_a_slot():
    n = type("Slotted", (), {"__slots__": ("k",)})()
    n.k = flow.full((3,), 2.0)
    return lambda x: x * n.k, lambda: setattr(n, "k", flow.full((3,), 9.0))


# --- the process ----------------------------------------------------------------------------------


@kind
def environment_item():
    os.environ["FLOWVM_TEST_WATCHED"] = "2"
    read = lambda x: x * float(os.environ["FLOWVM_TEST_WATCHED"])  # noqa: E731
    return read, lambda: os.environ.update(FLOWVM_TEST_WATCHED="9")


@kind
def environment_get():
    os.environ.pop("FLOWVM_TEST_WATCHED", None)
    read = lambda x: x * float(os.environ.get("FLOWVM_TEST_WATCHED", "2"))  # noqa: E731
    return read, lambda: os.environ.update(FLOWVM_TEST_WATCHED="9")


@kind
def environment_getenv():
    os.environ.pop("FLOWVM_TEST_WATCHED", None)
    read = lambda x: x * float(os.getenv("FLOWVM_TEST_WATCHED", "2"))  # noqa: E731
    return read, lambda: os.environ.update(FLOWVM_TEST_WATCHED="9")


@kind
def environment_membership():
    os.environ.pop("FLOWVM_TEST_WATCHED", None)
    read = lambda x: x * (9.0 if "FLOWVM_TEST_WATCHED" in os.environ else 2.0)  # noqa: E731
    return read, lambda: os.environ.update(FLOWVM_TEST_WATCHED="9")


@kind
def level_of_a_logger():
    log = logging.getLogger("flowvm-test-watched")
    log.setLevel(logging.ERROR)

    def function(x):
        log.info("not a value that is read")
        return x * (9.0 if log.isEnabledFor(logging.INFO) else 2.0)

    return function, lambda: log.setLevel(logging.INFO)


@kind
def method_with_a_fixed_argument_replaced():
    class Holder:
        def scaled(self, x, k):
            return x * k

        part = functools.partialmethod(scaled, k=2.0)

    n = Holder()
    change = lambda: setattr(Holder, "part", functools.partialmethod(Holder.scaled, k=9.0))  # noqa: E731
    return lambda x: n.part(x), change


@kind
def function_of_flowvm_replaced():
    module = types.ModuleType("functional")
    module.relu = nn.functional.relu
    return lambda x: module.relu(x), lambda: setattr(module, "relu", lambda x: x * 9.0)


@kind
def attribute_of_a_graph():
    return lambda x: x * SHARED_GRAPH.k, lambda: setattr(type(SHARED_GRAPH), "k", 9.0)


@kind
def module_child_put_into_its_dict():
    n = module_class(forward=lambda self, x: self.child(x))()
    n.child = nn.Identity()
    return n, lambda: n.__dict__.update(child=nn.Hardtanh())


@kind
def context_variable():
    var = contextvars.ContextVar("var", default=2.0)
    return lambda x: x * var.get(), lambda: var.set(9.0)


@kind
def weak_reference():
    held = [plain_class()()]
    ref = weakref.ref(held[0])
    return lambda x: x * (2.0 if ref() is not None else 9.0), held.clear


@kind
def registered_subclass():
    base = abc.ABC.__class__("Base", (), {})
    n = plain_class()()
    return lambda x: x * (9.0 if isinstance(n, base) else 2.0), lambda: base.register(type(n))


@kind
def generator_of_random_numbers():
    draws = random.Random(3)
    twin = Plain(state=draws.getstate())

    def function(x):
        return x * draws.random()

    def change():
        draws.setstate(twin.state)

    return function, change


# --- modules --------------------------------------------------------------------------------------


def module_class(**attributes):
    """A Module of its own that scales by `k`."""
    forward = lambda self, x: x * self.k  # noqa: E731
    return type("Scaled", (nn.Module,), {"forward": forward, **attributes})


@kind
def module_class_attribute():
    kind = module_class(k=2.0)
    n = kind()
    return n, lambda: setattr(kind, "k", 9.0)


@kind
def module_class_attribute_in_a_function():
    kind = module_class(k=2.0)
    n = kind()
    return lambda x: n(x), lambda: setattr(kind, "k", 9.0)


@kind
def module_class_attribute_covered():
    n = module_class(k=2.0)()
    return n, lambda: setattr(n, "k", 9.0)


@kind
def module_attribute_by_object_setattr():
    n = module_class()()
    n.k = 2.0
    return n, lambda: object.__setattr__(n, "k", 9.0)


@kind
def module_attribute_by_its_dict():
    n = module_class()()
    n.k = 2.0
    return n, lambda: n.__dict__.update(k=9.0)


@kind
def module_property():
    n = module_class(k=property(lambda self: self.own))()
    n.own = 2.0
    return n, lambda: object.__setattr__(n, "own", 9.0)


@kind
def module_forward_replaced():
    kind = module_class(k=2.0)
    n = kind()
    return n, lambda: setattr(kind, "forward", lambda self, x: x * 9.0)


@kind
def module_forward_set_on_the_instance():
    n = module_class(k=2.0)()
    return n, lambda: setattr(n, "forward", lambda x: x * 9.0)


@kind
def module_forward_code():
    kind = module_class(k=2.0)
    other = lambda self, x: x * 9.0  # noqa: E731
    return kind(), lambda: setattr(kind.forward, "__code__", other.__code__)


@kind
def module_method_set_on_the_instance():
    kind = module_class(forward=lambda self, x: self.scaled(x), scaled=lambda self, x: x * 2.0)
    n = kind()
    return n, lambda: setattr(n, "scaled", lambda x: x * 9.0)


@kind
def module_method_replaced():
    kind = module_class(forward=lambda self, x: self.scaled(x), scaled=lambda self, x: x * 2.0)
    return kind(), lambda: setattr(kind, "scaled", lambda self, x: x * 9.0)


@kind
def module_list_attribute():
    n = module_class(forward=lambda self, x: x * self.k[0])()
    n.k = [2.0]
    return n, lambda: n.k.__setitem__(0, 9.0)


@kind
def module_config():
    n = module_class(forward=lambda self, x: x * self.cfg.t)()
    n.cfg = plain_class(t=2.0)()
    return n, lambda: setattr(n.cfg, "t", 9.0)


@kind
def module_child_class_attribute():
    kind = module_class(k=2.0)
    n = nn.Sequential(kind(), nn.Identity())
    return n, lambda: setattr(kind, "k", 9.0)


@kind
def module_hook_by_what_it_reads():
    n, cfg = module_class(k=1.0)(), Plain(k=2.0)
    n.register_forward_hook(lambda module, args, out: out * cfg.k)
    return n, lambda: setattr(cfg, "k", 9.0)


# --- the tests ------------------------------------------------------------------------------------


class Around(nn.Graph):
    """A graph whose build calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, x):
        return self.function(x)


class Shared(nn.Graph):
    """A graph whose class has a value."""

    k = 2.0

    def build(self, x):
        return x * self.k


SHARED_GRAPH = Shared()
WAYS = {"compile": flow.compile, "Graph": Around}
CAPTURED_AT_EACH_CALL = {"generator_of_random_numbers", "generator_of_numpys"}


@pytest.fixture(autouse=True)
def _cleared(monkeypatch):
    """Restore the values that the kinds change."""
    monkeypatch.setattr(Shared, "k", 2.0)
    monkeypatch.setitem(os.environ, "FLOWVM_TEST_WATCHED", "")
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)
    globals().pop("abs", None)


def test_there_are_enough_kinds():
    assert len(KINDS) >= 130


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_a_change_is_noticed(name, way):
    function, change = KINDS[name]()
    x = flow.arange(1.0, 4.0)
    graph = WAYS[way](function)
    if name in CAPTURED_AT_EACH_CALL:
        first, second = graph(x).tolist(), graph(x).tolist()
        change()
        assert [graph(x).tolist(), graph(x).tolist()] == [first, second]
        assert first != second
        return
    with flow.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        before = function(x).tolist()
        assert [graph(x).tolist() for _ in range(3)] == [before] * 3
        plans = len(graph.plans)
        assert plans <= 2  # a cache that the first call fills is another state
        change()
        now, expected = graph(x), function(x)
        assert str(now.tolist()) == str(expected.tolist()) != str(before)
        assert [graph(x).tolist() for _ in range(2)] == [expected.tolist()] * 2
        assert len(graph.plans) == plans + 1, graph.explain()


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: setattr(type(graph), "k", 9.0),
        lambda graph: setattr(type(graph), "own", 9.0),
        lambda graph: setattr(graph, "k", 9.0),
        lambda graph: setattr(graph, "scaled", lambda x: x * 9.0),
        lambda graph: setattr(type(graph), "scaled", lambda self, x: x * 9.0),
        lambda graph: setattr(type(graph), "fixed", staticmethod(lambda: 9.0)),
        lambda graph: setattr(type(graph), "build", lambda self, x: x * 9.0),
    ],
    ids=["class", "property", "instance", "method", "class's method", "static", "build"],
)
def test_what_a_graph_reads_of_itself_is_watched(change):
    class Own(nn.Graph):
        k, own = 2.0, 3.0

        @property
        def computed(self):
            return self.own

        @staticmethod
        def fixed():
            return 1.0

        def scaled(self, x):
            return x * self.k * self.computed

        def build(self, x):
            return self.scaled(x) * self.fixed()

    graph, x = Own(), flow.arange(1.0, 4.0)
    before = [graph(x).tolist() for _ in range(2)]
    change(graph)
    after = graph(x).tolist()
    assert after == graph.build(x).tolist() != before[1]


# --- what the code changes itself -----------------------------------------------------------------


def alike_at_each_call(make, calls=4):
    """Check that a graph does the same as eager code, call by call, and has the same effects."""
    x = flow.arange(1.0, 4.0)
    eager, left_by_eager = make()
    replayed, rest_of = make()
    graph = flow.compile(replayed)
    for _ in range(calls):
        assert graph(x).tolist() == eager(x).tolist()
        assert rest_of() == left_by_eager()
    return graph


def test_a_counter_that_is_read_and_set_back_counts_again():
    """A Plan of the state that comes back must not serve: it would not count."""

    def make():
        n = Plain(count=0)

        def function(x):
            n.count += 1
            if n.count == 3:
                n.count = 0
            return x * n.count

        return function, lambda: n.count

    alike_at_each_call(make, calls=8)


@pytest.mark.parametrize("how", ["function", "method", "any arguments"])
def test_what_a_signal_handler_reads_is_not_the_codes(how):
    calls, limits = [], Plain(factor=1)

    def note(frame):
        calls.append((frame.f_lineno, limits.factor))

    def plain(signum, frame):
        note(frame)

    class Handler:
        def handle(self, signum, frame, more=None):
            note(frame)

    ways = {
        "function": plain,
        "method": Handler().handle,
        "any arguments": lambda *args: note(args[1]),
    }

    def build(x):
        signal.raise_signal(signal.SIGUSR1)
        return x * 2

    before = signal.signal(signal.SIGUSR1, ways[how])
    try:
        graph = flow.compile(build)
        x = flow.ones(2)
        assert graph(x).tolist() == [2.0, 2.0]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls
    calls.append("changed")
    limits.factor = 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecaptureWarning)
        assert graph(x).tolist() == [2.0, 2.0]


def test_what_a_finalizer_calls_is_not_the_codes():
    counts = Plain(ended=0)

    def note():
        counts.ended += 1

    class Ending:
        def __del__(self):
            note()

    def build(x):
        Ending()
        return x + 1

    graph = flow.compile(build)
    assert graph(flow.ones(2)).tolist() == [2.0, 2.0]
    assert counts.ended == 1
    counts.ended = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecaptureWarning)
        assert graph(flow.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OSError])
def test_a_guard_says_what_the_process_lacks(error):
    class Lacking:
        @property
        def k(self):
            raise error

    guard = guards.Attribute("k", Lacking(), "k", 2.0)
    if error is OSError:  # of the user's own code
        assert guard.now() is guards.FAILED
        return
    with pytest.raises(error):
        guard.holds()


def test_no_guard_keeps_the_frames_of_an_error():
    """An error that the code raises keeps no guard on its frames; values of an error from elsewhere
    are watched.
    """
    known, references = ValueError(2.0), []

    class Held:
        pass

    def fail():
        held = Held()
        references.append(weakref.ref(held))
        raise KeyError(3.0)

    def build(x):
        try:
            fail()
        except KeyError as error:
            lines = error.__traceback__.tb_lineno, error.__traceback__.tb_frame.f_lineno
            factor = error.args[0] + 0 * sum(lines)
        return x * factor * known.args[0]

    graph = flow.compile(build)
    gc.collect()
    gc.disable()
    try:
        assert graph(flow.ones(2)).tolist() == [6.0, 6.0]
        assert [ref() for ref in references] == [None]
    finally:
        gc.enable()
    known.args = (5.0,)
    assert graph(flow.ones(2)).tolist() == [15.0, 15.0]


def test_a_counter_in_a_slot_a_class_a_dict_and_a_list_counts():
    def make():
        slotted = type("Slotted", (), {"__slots__": ("k",)})()
        slotted.k, kind, table, row = 0, plain_class(k=0), {"k": 0}, [0]

        def function(x):
            slotted.k += 1
            kind.k += 2
            table["k"] += 3
            row[0] += 4
            return x * (slotted.k + kind.k + table["k"] + row[0])

        return function, lambda: (slotted.k, kind.k, table["k"], row[0])

    alike_at_each_call(make)


def test_what_is_only_written_is_written_again_where_it_was_changed():
    n = Plain(last=None)

    def function(x):
        n.last = "build"
        return x + 1

    graph, x = flow.compile(function), flow.ones(2)
    for _ in range(3):
        graph(x)
    assert len(graph.plans) == 1
    n.last = "somebody"
    graph(x)
    assert n.last == "build"


def test_a_global_that_is_written_before_it_is_read_is_written_again():
    names = {"k": 2}
    exec("def function(x):\n  global k\n  k = 6\n  return x * k", names)
    graph, x = flow.compile(names["function"]), flow.arange(1.0, 4.0)
    for _ in range(3):
        names["k"] = 2
        assert graph(x).tolist() == [6, 12, 18]
        assert names["k"] == 6


def test_a_value_that_comes_back_finds_its_plan():
    n = Plain(k=2.0)
    graph, x = flow.compile(lambda x: x * n.k), flow.ones(2)
    for k in (2.0, 3.0, 2.0, 3.0, 2.0):
        n.k = k
        assert graph(x).tolist() == [k, k]
    assert len(graph.plans) == 2


def test_what_the_code_makes_itself_is_not_watched():
    def function(x):
        plain, table = Plain(k=2.0), {"a": [1.0]}
        plain.k += 1
        table["a"].append(plain.k)
        plain.rows = list(table["a"])
        return x * sum(plain.rows)

    graph, x = flow.compile(function), flow.ones(2)
    for _ in range(4):
        assert graph(x).tolist() == [4, 4]
    assert len(graph.plans) == 1


def test_the_change_is_named_by_its_path():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cfg = plain_class(t=2.0)()

        def forward(self, x):
            return x * self.cfg.t

    model = Net()
    graph, x = flow.compile(lambda x: model(x)), flow.ones(2)
    graph(x)
    model.cfg.t = 9.0
    with pytest.warns(RecaptureWarning, match=r"model\.cfg\.t 2\.0 -> 9\.0"):
        graph(x)
    assert "model.cfg.t 2.0 -> 9.0" in graph.explain()


def test_a_trace_function_that_was_there_is_called_and_stays():
    """A debugger's or a coverage tool's."""
    lines = set()

    def local(frame, event, arg):
        if event == "line":
            lines.add(frame.f_lineno)
        return local

    def tracer(frame, event, arg):
        return local if frame.f_code is function.__code__ else None

    n = Plain(k=2.0)

    def function(x):
        y = x * n.k
        return y + 1

    graph, x, before = flow.compile(function), flow.ones(2), sys.gettrace()
    sys.settrace(tracer)
    try:
        graph(x)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    first = function.__code__.co_firstlineno
    assert lines == {first + 1, first + 2}
    n.k = 9.0
    assert graph(x).tolist() == [10, 10]


def test_a_failing_build_leaves_no_trace_function():
    def function(x):
        raise KeyError("mine")

    before = sys.gettrace()
    with pytest.raises(KeyError):
        flow.compile(function)(flow.ones(2))
    assert sys.gettrace() is before


# --- what cannot be watched -----------------------------------------------------------------------

UNWATCHED = {}


def unwatched(message):
    """Return a decorator that enters a function whose reads no call can check, and its message."""

    def enter(make):
        UNWATCHED[make.__name__] = make, message
        return make

    return enter


@unwatched(r"time\.time\(\)")
def clock():
    return lambda x: x * time.time()


@unwatched(r"time\.perf_counter\(\)")
def clock_by_another_name():
    now = time.perf_counter
    return lambda x: x * now()


@unwatched(r"datetime\.now\(\)")
def date_of_today():
    return lambda x: x * datetime.datetime.now().year


@unwatched(r"os\.urandom\(\)")
def random_bytes():
    return lambda x: x * os.urandom(1)[0]


@unwatched(r"SystemRandom")
def random_of_the_system():
    draws = random.SystemRandom()
    return lambda x: x * draws.random()


@unwatched(r"os\.urandom\(\)|uuid")
def unique_number():
    import uuid

    return lambda x: x * (uuid.uuid4().int % 3)


@unwatched(r"os\.getpid\(\)")
def process_number():
    return lambda x: x * os.getpid()


@unwatched(r"os\.stat\(\)")
def file_there():
    return lambda x: x * os.path.exists(__file__)


@unwatched(r"open\(\)")
def file_read():
    def function(x):
        with open(__file__) as f:
            return x * len(f.readline())

    return function


@unwatched(r"open\(\)")
def file_read_by_a_path():
    import pathlib

    return lambda x: x * len(pathlib.Path(__file__).read_text())


@unwatched(r"next\(\) of numbers")
def iterator_from_outside():
    numbers = iter([1.0, 2.0, 3.0])
    return lambda x: x * next(numbers)


@unwatched(r"next\(\) of numbers")
def generator_from_outside():
    numbers = (float(k) for k in range(9))

    def function(x):
        for k in numbers:
            return x * k
        return None

    return function


@unwatched(r"next\(\) of numbers")
def count_from_outside():
    numbers = itertools.count(1)
    return lambda x: x * next(numbers)


def _exhausted(use):
    def make():
        numbers = iter([1.0, 2.0, 3.0])
        return lambda x: x * use(numbers)

    return make


for _name, _use in {
    "summed": sum, "listed": lambda k: len(list(k)), "unpacked": lambda k: len([*k]),
    "mapped": lambda k: len(list(map(float, k))), "asked": lambda k: 2.0 in k,
    "extending": lambda k: len([].__iadd__(k)), "keys": lambda k: len(dict.fromkeys(k)),
    "spread": lambda k: (lambda *items: len(items))(*k), "added": math.fsum,
}.items():  # fmt: skip
    UNWATCHED[f"iterator_{_name}"] = (_exhausted(_use), r"next\(\) of (numbers|k)")


@unwatched(r"the pairs of k")
def pairs_of_a_dict_kept():
    k = {"a": 2.0}.items()
    return lambda x: x * sum(value for _, value in k)


@unwatched(r"answers from a cache")
def cached_function():
    @functools.lru_cache
    def k():
        return 2.0

    return lambda x: x * k()


@unwatched(r"k, of 5000 items")
def large_list():
    k = [1.0] * 5000
    return lambda x: x * sum(k)


@unwatched(r"k, an array of 800000 bytes")
def large_array():
    k = np.ones(100_000)
    return lambda x: x * float(k.sum())


@pytest.mark.parametrize("name", UNWATCHED)
def test_what_cannot_be_watched_is_said_when_it_is_captured(name):
    make, text = UNWATCHED[name]
    function = make()
    graph, x = flow.compile(function), flow.ones(2)
    with pytest.warns(CaptureWarning, match=text) as caught:
        graph(x)
    first = function.__code__.co_firstlineno
    assert any(
        w.category is CaptureWarning
        and (os.path.basename(w.filename), first <= w.lineno) == ("test_watched.py", True)
        for w in caught
    )
    assert "not watched" in graph.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        graph.config.disable("fusion")
        graph(x)  # captured again, and said once
    graph.reset()
    assert "not watched" not in graph.explain()
