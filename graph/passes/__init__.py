"""Passes: functions from LogicalGraph to LogicalGraph. `passes` has their table and order.

A pass may change what runs and not what comes out.
Not here: where values lie (`memory`), and how a node is compiled (`plan`).
"""
