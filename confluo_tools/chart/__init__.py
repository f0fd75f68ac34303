"""Pictures of groups (--agg, --by): lines over time, bars of names; as SVG, as a page, in a terminal.

model       what is drawn: axes, lines, values
scale       round numbers along an axis, and values as short texts
svg, page   a picture; a self-contained HTML page with the picture and a table
terminal    sparklines and bars of block characters
output      gathers the records of a result and writes one of these
"""
