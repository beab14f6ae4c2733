"""A new assay with twenty labelled compounds, and older assays of related receptors, partly on the same compounds."""

from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score

from cameraready import data
from cameraready.methods.recog import AuxMean, FewShotSklearn, MoleculeTable, ReCoG, compare, evaluate_fewshot

OLD = ["CHEMBL233_Ki", "CHEMBL236_Ki", "CHEMBL237_EC50", "CHEMBL234_Ki", "CHEMBL219_Ki", "CHEMBL238_Ki"]
NEW = "CHEMBL237_Ki"  # the kappa opioid receptor

frame = data.load("moleculeace")  # or MoleculeTable.from_csv("assays.csv"): a column of SMILES, one column an assay
frame = frame[frame[[*OLD, NEW]].notna().any(axis=1)].sample(1500, random_state=0)
table = MoleculeTable.from_frame(frame, tasks=[*OLD, NEW], binarise="median")
print(table, "-", table.report)

model = ReCoG(steps=50, random_state=0).fit(table, OLD)

new = dict(zip(table.molecules.smiles, table.labels[:, table.tasks.index(NEW)], strict=True))
actives, inactives = ([name for name, label in new.items() if label == wanted] for wanted in (1, 0))
support, queries = actives[:10] + inactives[:10], actives[10:] + inactives[10:]
classifier = model.adapt(support, [1] * 10 + [0] * 10, context=table.context(support, tasks=OLD))

context = table.context(queries, tasks=OLD)
probability = classifier.predict_proba(queries, context)[:, 1]
print(f"ROC-AUC {roc_auc_score([new[name] for name in queries], probability):.3f}")
print(classifier.explain(queries[:3], context.head(3)).round(2).to_string(index=False))

# Is it worth it here? The same labels for a forest on fingerprints, and for the plain mean of the old labels.
peers = {"forest": FewShotSklearn(RandomForestClassifier(100, random_state=0)), "mean of old labels": AuxMean()}
results = evaluate_fewshot({"ReCoG": ReCoG(steps=50, random_state=0)} | peers, table, [NEW], draws=3)
print(compare(results, "ReCoG"))
