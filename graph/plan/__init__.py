"""Plans: a LogicalGraph compiled for replay: words, actors, launches, tables.

Not here: the loops that read those words (`flowvm.vm.workers`); what Python does around a replay
(`flowvm.nn.graph`).
"""
