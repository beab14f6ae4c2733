"""What real language models answered, question by question: for routing and evaluation."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from cameraready.data.download import Remote, locate, mirrors
from cameraready.data.missing import MissingData
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    import pandas as pd

_BY_HAND = "a compiled table: place it in the folder llm/ of a folder that CAMERAREADY_DATA names"

_ROUTELLM = "https://raw.githubusercontent.com/lm-sys/RouteLLM/0b64fdafe049e596a3f5657c219329f24af24198/routellm/evals/"
_MMLU_SUBJECTS = """
    abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
    college_computer_science college_mathematics college_medicine college_physics computer_security
    conceptual_physics econometrics electrical_engineering elementary_mathematics formal_logic global_facts
    high_school_biology high_school_chemistry high_school_computer_science high_school_european_history
    high_school_geography high_school_government_and_politics high_school_macroeconomics high_school_mathematics
    high_school_microeconomics high_school_physics high_school_psychology high_school_statistics
    high_school_us_history high_school_world_history human_aging human_sexuality international_law jurisprudence
    logical_fallacies machine_learning management marketing medical_genetics miscellaneous moral_disputes
    moral_scenarios nutrition philosophy prehistory professional_accounting professional_law
    professional_medicine professional_psychology public_relations security_studies sociology us_foreign_policy
    virology world_religions
"""

# SHA-256 of the 58 files one after another, GSM8K first.
_ROUTELLM_CHECKSUM = "b98696b5b72b067e720fc900a74f6db68c56a370a01a4a9a3900fa03c1956596"


@dataset(
    "routellm",
    "responses",
    returns="DataFrame (15361, 5): bench, subject, prompt, mixtral_8x7b_correct, gpt4_1106_correct (0 / 1)",
    size="MMLU and GSM8K questions, 2 models, 10 MB",
    licence="Apache-2.0",
    source="lm-sys/RouteLLM, evals",
    found="download",
    get=_ROUTELLM,
)
def routellm() -> pd.DataFrame:
    """Whether Mixtral 8x7B and GPT-4 answered each question of GSM8K and MMLU correctly; prompts cut at 600 letters."""
    import pandas as pd

    compiled = "routellm_mmlu_gsm8k.csv.gz"
    if any((root / "llm" / compiled).is_file() for root in mirrors()):
        return _responses(compiled, "488faae0a99eda23a665798899421c598388704f28b64c699283239e00ef89e2")
    sources = {"gsm8k": "gsm8k/gsm8k_responses.csv"}
    sources |= {subject: f"mmlu/responses/mmlu_{subject}.csv" for subject in _MMLU_SUBJECTS.split()}
    files = {subject: locate(Remote(f"routellm/{path}", _ROUTELLM + path, None)) for subject, path in sources.items()}
    found = hashlib.sha256(b"".join(file.read_bytes() for file in files.values())).hexdigest()
    if found != _ROUTELLM_CHECKSUM:
        folder = files["gsm8k"].parents[1]
        raise MissingData(f"the files in {folder} are not those at {_ROUTELLM}; remove that folder and load again")
    parts = []
    for subject, file in files.items():
        rows = pd.read_csv(file, usecols=[0, 1, 2])
        rows.columns = ["prompt", "mixtral_8x7b_correct", "gpt4_1106_correct"]
        rows = rows.astype({"mixtral_8x7b_correct": int, "gpt4_1106_correct": int})
        rows["prompt"] = rows["prompt"].str[:600]  # as in the compiled table
        rows.insert(0, "subject", subject)
        rows.insert(0, "bench", "gsm8k" if subject == "gsm8k" else "mmlu")
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


@dataset(
    "mathvision-responses",
    "responses",
    returns="DataFrame: id, level, subject, n_options, question, answer; correct, answer and chars of each model run",
    size="3,040 questions, 19 runs",
    licence="MIT",
    source="mathllm/MATH-V, outputs",
    found="by hand",
    get=_BY_HAND,
)
def mathvision_responses() -> pd.DataFrame:
    """MathVision questions with the answers of 19 runs (one of chance); three gpt4 runs carry no verdicts (NaN)."""
    return _responses("mathv_responses.csv.gz", "40b56e80f72a55d6a0b23e41deb3e5f54243a2f5c81df0c057202196c9696387")


def _responses(file: str, checksum: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(locate(Remote(f"llm/{file}", "", checksum)))
