"""Plans: a LogicalGraph compiled for replay: words, actors, launches, tables."""
