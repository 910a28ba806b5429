"""Passes: functions from LogicalGraph to LogicalGraph. `passes` has their table."""
