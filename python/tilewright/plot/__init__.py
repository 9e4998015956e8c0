"""Every table and plot of the documents, from results/.

    python -m tilewright.plot            write the tables between their markers, and docs/plots/
    python -m tilewright.plot --check    fail where a table is not what results/ gives
    python -m tilewright.plot --input FILE.jsonl --output-dir DIR    plot any results file

Needs no more than the standard library, but matplotlib for plots, and for the table of configs the
compiled module, which makes them.
"""
