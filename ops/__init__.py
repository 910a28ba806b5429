"""Every public op of flowvm."""
import importlib as _il, math as _math
from flowvm.ops.elementwise import elementwise
from flowvm.ops.optimizer import *
from flowvm.ops.registry import SAMPLES, Launch, Sample, View, op, samples
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
__all__ = ["SAMPLES", "Launch", "Sample", "View", "elementwise", "op", "samples"]
import pathlib as _p
for _f in sorted(_p.Path(__file__).parent.glob("*.py")):
    if _f.stem in {"__init__","blas","codegen","core","registry","recording","scalar","walk","optimizer","folds","elementwise"}: continue
    try: _m = _il.import_module("flowvm.ops."+_f.stem)
    except ImportError: continue
    for _n in getattr(_m,"__all__",[]):
        if hasattr(_m,_n): globals()[_n]=getattr(_m,_n); __all__.append(_n)
__all__.sort()
