"""The globals of generated calls: a declared record."""

from typing import get_type_hints

import flowvm as flow
from flowvm import nn
from flowvm.vm.callers import hot as module
from flowvm.vm.callers.hot import IssueGlobals, hot, issue_globals

DEBUG_ONLY = {"none_begun", "begun", "get_ident"}


def test_hot_has_all_keys_that_its_record_declares_and_no_other():
    flow.ones(3).numpy()
    nn.Linear(2, 2)  # who makes Parameters enters their class
    assert hot is issue_globals
    assert DEBUG_ONLY.isdisjoint(hot) or DEBUG_ONLY <= set(hot)
    assert set(hot) - DEBUG_ONLY == set(get_type_hints(IssueGlobals, vars(module))) - DEBUG_ONLY
