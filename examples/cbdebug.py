"""A folder of pictures, a classifier that goes by the background, and its repair."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from cameraready import data
from cameraready.methods.cbdebug import (
    CBDebug,
    SequentialCBM,
    explain_concepts,
    group_report,
    read_folder,
    small_encoder,
)

# A folder as you would have it, one subfolder a class: digits with and without a loop, on crops of two photographs.
# In nine of ten pictures the photograph gives the class away.
folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
(digits, kinds), photos = data.load("digits-labelled"), data.load("photos")
facts = {"loop": [], "no loop": []}
for i in range(900):
    loop = kinds[i] in (0, 6, 8, 9)
    flower = int(loop if rng.random() < 0.9 else not loop)
    row, column = rng.integers(0, 360, size=2)
    picture = Image.fromarray(np.uint8(255 * photos[flower][row : row + 64, column : column + 64])).resize((32, 32))
    picture.paste(Image.fromarray(np.uint8(15.9 * digits[i])).resize((20, 20)), (6, 6))
    name = "loop" if loop else "no loop"
    (folder / name).mkdir(exist_ok=True)
    picture.save(folder / name / f"{i:03d}.png")
    facts[name].append([*(kinds[i] == k for k in range(10)), flower])

images, y = read_folder(folder, size=32)
concepts = np.array(facts["loop"] + facts["no loop"], dtype=float)
names = [*"0123456789", "flower"]
model = SequentialCBM(small_encoder(width=16), concept_names=names, epochs=40, lr=3e-3, strength=1e-2)
model.fit(images, y, concepts)
print(explain_concepts(model, images), "\n")  # .to_html("concepts.html") shows the pictures

debug = CBDebug()
fixed = debug.fix(model, images, y, undesired=["flower"])
print(debug.report_, "\n")
print("on these pictures, before:", group_report(model, images, y, concepts[:, -1]), "", "after:", sep="\n")
print(group_report(fixed, images, y, concepts[:, -1]))
