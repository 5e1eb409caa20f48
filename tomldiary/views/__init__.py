"""How memory looks in notebooks and consoles: tables, cards, diffs, DataFrames, plots and magics.

Objects of other packages name a function here through `tomldiary.runtime.views`; nothing imports this package before
the first object is shown. A maker turns an object into a `Sheet`, and a renderer turns that into HTML or text. Begin with
`show`. May import everything below it; pandas, matplotlib, tqdm and IPython are optional.
"""
