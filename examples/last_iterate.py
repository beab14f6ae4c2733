"""Investment of eleven American firms, 1935 to 1954: which firms share one model, and how good is the answer?"""

import networkx as nx
from statsmodels.datasets import grunfeld

from cameraready.methods.last_iterate import NetworkLassoCV, NetworkLassoRegressor

panel = grunfeld.load_pandas().data  # 220 rows: firm, year, invest, value, capital
early, late = panel[panel["year"] < 1950], panel[panel["year"] >= 1950]
columns = ["value", "capital"]
firms = nx.complete_graph(sorted(panel["firm"].unique()))

model = NetworkLassoRegressor(firms, max_iter=20_000, polish=True, random_state=0)
search = NetworkLassoCV(model, lams=[3.0, 0.3, 0.1, 0.03, 0.0], cv=3, random_state=0)
search.fit(early[columns], early["invest"], task=early["firm"])
print(search.cv_errors_.mean(axis=1).round(0).to_string())

best = search.best_estimator_
print(f"\nlam = {search.lam_}: objective {best.objective_:.2f}, proven within {best.gap_:.2g} of the optimum")
for group in best.groups_:
    print("  one model:" if len(group) > 1 else "  alone:    ", ", ".join(group))

for name, lam in (("tied", search.lam_), ("separate", 0.0)):
    fitted = NetworkLassoRegressor(firms, lam=lam, polish=True, random_state=0)
    fitted.fit(early[columns], early["invest"], task=early["firm"])
    print(f"R2 of 1950 to 1954, {name}: {fitted.score(late[columns], late['invest'], task=late['firm']):.3f}")
