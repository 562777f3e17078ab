"""Delta rules: plans that compute the change of a view from the changes of its inputs, and signed bags. Pure.

Law: new(E) = old(E) + Δ(E), to the bit (`derive.py` per operator, `forms.py` for what a view stores). Where no rule
is exact, there is no rule, and the view is recomputed.
"""
