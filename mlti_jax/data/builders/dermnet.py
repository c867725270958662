"""DermNet (App. E.1): skin diseases; non-label-sharing, 5-way 1- or 5-shot.

DermNet's classes have a long tail. Of the 203 with at least 30 images, the largest 30
are for meta-training (DermNet-S) and the smallest 53 for meta-testing; the 120 between
them are added one after the other, up to the full size of 150. There is no validation
class.
"""

from __future__ import annotations

import collections
import hashlib
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator

import tensorflow_datasets as tfds

from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import image_folders
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import base
from mlti_jax.errors import InputError

SIZE = 84
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"}
)
TRAIN = (
    "Seborrheic Keratoses Ruff",
    "Herpes Zoster",
    "Atopic Dermatitis Adult Phase",
    "Psoriasis Chronic Plaque",
    "Eczema Hand",
    "Seborrheic Dermatitis",
    "Keratoacanthoma",
    "Lichen Planus",
    "Epidermal Cyst",
    "Eczema Nummular",
    "Tinea (Ringworm) Versicolor",
    "Tinea (Ringworm) Body",
    "Lichen Simplex Chronicus",
    "Scabies",
    "Psoriasis Palms Soles",
    "Malignant Melanoma",
    "Candidiasis large Skin Folds",
    "Pityriasis Rosea",
    "Granuloma Annulare",
    "Erythema Multiforme",
    "Seborrheic Keratosis Irritated",
    "Stasis Dermatitis and Ulcers",
    "Distal Subungual Onychomycosis",
    "Allergic Contact Dermatitis",
    "Psoriasis",
    "Molluscum Contagiosum",
    "Acne Cystic",
    "Perioral Dermatitis",
    "Vasculitis",
    "Eczema Fingertips",
)
TEST = (
    "Warts",
    "Ichthyosis Sex Linked",
    "Atypical Nevi",
    "Venous Lake",
    "Erythema Nodosum",
    "Granulation Tissue",
    "Basal Cell Carcinoma Face",
    "Acne Closed Comedo",
    "Scleroderma",
    "Crest Syndrome",
    "Ichthyosis Other Forms",
    "Psoriasis Inversus",
    "Kaposi Sarcoma",
    "Trauma",
    "Polymorphous Light Eruption",
    "Dermagraphism",
    "Lichen Sclerosis Vulva",
    "Pseudomonas",
    "Cutaneous Larva Migrans",
    "Psoriasis Nails",
    "Corns",
    "Lichen Sclerosus Penis",
    "Staphylococcal Folliculitis",
    "Chilblains Perniosis",
    "Psoriasis Erythrodermic",
    "Squamous Cell Carcinoma Ear",
    "Basal Cell Carcinoma Ear",
    "Ichthyosis Dominant",
    "Erythema Infectiosum",
    "Actinic Keratosis Hand",
    "Basal Cell Carcinoma Lid",
    "Amyloidosis",
    "Spiders",
    "Erosio Interdigitalis Blastomycetica",
    "Scarlet Fever",
    "Pompholyx",
    "Melasma",
    "Eczema Trunk Generalized",
    "Metastasis",
    "Warts Cryotherapy",
    "Nevus Spilus",
    "Basal Cell Carcinoma Lip",
    "Enterovirus",
    "Pseudomonas Cellulitis",
    "Benign Familial Chronic Pemphigus",
    "Pressure Urticaria",
    "Halo Nevus",
    "Pityriasis Alba",
    "Pemphigus Foliaceous",
    "Cherry Angioma",
    "Chapped Fissured Feet",
    "Herpes Buttocks",
    "Ridging Beading",
)
# Added one after the other to study the number of training tasks.
ADDITIONAL = (
    "Lupus Chronic Cutaneous",
    "Rosacea",
    "Genital Warts",
    "Dermatofibroma",
    "Seborrheic Keratoses Smooth",
    "Basal Cell Carcinoma Lesion",
    "Sun Damaged Skin",
    "Tinea (Ringworm) Groin",
    "Lichen Sclerosus Skin",
    "Atopic Dermatitis Childhood Phase",
    "Psoriasis Guttate",
    "Warts Common",
    "Warts Plantar",
    "Herpes Cutaneous",
    "Eczema Subacute",
    "Psoriasis Scalp",
    "Bullous Pemphigoid",
    "Sebaceous Hyperplasia",
    "Pyogenic Granuloma",
    "Phototoxic Reactions",
    "Urticaria Acute",
    "CTCL Cutaneous T-Cell Lymphoma",
    "Drug Eruptions",
    "Mucous Cyst",
    "Alopecia Areata",
    "Hidradenitis Suppurativa",
    "Herpes Type 1 Recurrent",
    "Viral Exanthems",
    "Skin Tags Polyps",
    "Melanocytic Nevi",
    "Dermatitis Herpetiformis",
    "Eczema Foot",
    "Morphea",
    "Intertrigo",
    "Atopic Dermatitis Infant phase",
    "Bowen Disease",
    "Necrobiosis Lipoidica",
    "Lentigo Adults",
    "Xanthomas",
    "Rhus Dermatitis",
    "Keratosis Pilaris",
    "Schamberg Disease",
    "Rosacea Nose",
    "Chondrodermatitis Nodularis",
    "Keloids",
    "Tinea (Ringworm) Foot Webs",
    "Tinea (Ringworm) Laboratory",
    "Porokeratosis",
    "Impetigo",
    "Basal Cell Carcinoma Pigmented",
    "Porphyrias",
    "Epidermal Nevus",
    "Fixed Drug Eruption",
    "Venous Malformations",
    "Acne Open Comedo",
    "Perlèche",
    "Acne Pustular",
    "Herpes Type 1 Primary",
    "Tinea (Ringworm) Scalp",
    "Neurofibromatosis",
    "Warts Flat",
    "Pityriasis Rubra Pilaris",
    "Hemangioma",
    "Herpes Type 2 Primary",
    "Tinea (Ringworm) Hand Dorsum",
    "Neurotic Excoriations",
    "Tinea (Ringworm) Primary Lesion",
    "Basal Cell Carcinoma Nose",
    "Dariers disease",
    "Tinea (Ringworm) Foot Dorsum",
    "Tinea (Ringworm) Face",
    "Tinea (Ringworm) Incognito",
    "Acanthosis Nigricans",
    "Onycholysis",
    "Warts Digitate",
    "Psoriasis Pustular Generalized",
    "Varicella",
    "Basal Cell Carcinoma Superficial",
    "Herpes Simplex",
    "Nevus Sebaceous",
    "Actinic Keratosis 5 FU",
    "Acne Keloidalis",
    "Hemangioma Infancy",
    "Candida Penis",
    "Tuberous Sclerosis",
    "Stucco Keratoses",
    "Eczema Herpeticum",
    "Dyshidrosis",
    "Epidermolysis Bullosa",
    "Actinic Cheilitis Squamous Cell Lip",
    "Ticks",
    "Actinic Keratosis Face",
    "Chronic Paronychia",
    "Biting Insects",
    "Dermatomyositis",
    "Grovers Disease",
    "Atypical Nevi Dermoscopy",
    "Patch Testing",
    "Telangiectasias",
    "Pityriasis Lichenoides",
    "Psoriasis Hand",
    "Actinic Keratosis Lesion",
    "Lichen Planus Oral",
    "Tinea (Ringworm) Foot Plantar",
    "Eczema Chronic",
    "Herpes Type 2 Recurrent",
    "Lupus Acute",
    "Eczema Asteatotic",
    "Pilar Cyst",
    "Pemphigus",
    "Vitiligo",
    "Keratolysis Exfoliativa",
    "AIDS (Acquired Immunodeficiency Syndrome)",
    "Syringoma",
    "Habit Tic Deformity",
    "Congenital Nevus",
    "Angiokeratomas",
    "Prurigo Nodularis",
    "Pediculosis Pubic",
    "Tinea (Ringworm) Palm",
)
# What the copy on Kaggle calls classes whose names differ by more than spelling.
OTHER_NAMES = {
    "bowens-disease": "Bowen Disease",
    "ctcl": "CTCL Cutaneous T-Cell Lymphoma",
    "hives-urticaria-acute": "Urticaria Acute",
    "stasis-dermatitis": "Stasis Dermatitis and Ulcers",
    "tick-bite": "Ticks",
}


class Dermnet(base.DatasetBuilder):
    """The builder; records are grouped by class."""

    EXAMPLES = 20_000
    INSTRUCTIONS = (
        "Put the pictures of the Dermnet Skin Disease Atlas (dermnet.com) into a folder"
        " DIR, in sub-folders of any depth. A picture's class is the name of its"
        " folder, as in 'Acne-Cystic/12.jpg'; or, where that is no class of the paper,"
        " the name of the file without the number at its end, as in 'train/Acne and"
        " Rosacea Photos/acne-cystic-12.jpg' of the copy on Kaggle ('Dermnet')."
    )

    def _info(self):
        names = TRAIN + ADDITIONAL + TEST
        return self.describe(
            {
                "image": base.image(SIZE),
                "label": tfds.features.ClassLabel(names=names),
            },
            description="The 203 skin diseases of DermNet with at least 30 pictures.",
            homepage="http://www.dermnet.com/dermatology-pictures-skin-disease-pictures",
            citation="""@misc{dermnet, title={Dermnet Skin Disease Atlas},
              howpublished={http://www.dermnet.com/}}""",
            license="Copyright Dermnet.com; see its terms of use.",
        )

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[base.Example]]:
        """Reads a tree of folders; see the base class."""
        files = self._files(folder)
        return {
            split: image_folders.examples(
                {label: files[label] for label in classes}, SIZE, self.processes
            )
            for split, classes in (("train", TRAIN + ADDITIONAL), ("test", TEST))
        }

    def _files(self, folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
        """The files of each class without copies, in the order of their names."""
        known = spellings()
        files = collections.defaultdict(list)
        for path in pictures(folder):
            label = class_of(path, known)
            if label is None:
                self.skip("of no class of the paper")
            else:
                files[label].append(path)
        missing = [name for name in TRAIN + ADDITIONAL + TEST if name not in files]
        if missing:
            raise InputError(
                f"{folder} has no picture of {len(missing)} of the paper's"
                f" {len(TRAIN + ADDITIONAL + TEST)} classes:"
                f" {image_folders.first_few(missing)}. {self.INSTRUCTIONS} If you"
                " have them under another name, put them into folders with these names."
            )
        try:
            return {label: list(self._without_copies(files[label])) for label in files}
        except OSError as error:
            raise InputError(
                f"{error.filename} can't be read ({error.strerror})"
            ) from error

    def _without_copies(self, paths: list[pathlib.Path]) -> Iterator[pathlib.Path]:
        sizes = [path.stat().st_size for path in paths]
        files_of_size = collections.Counter(sizes)
        seen = set()
        for path, size in zip(paths, sizes, strict=True):
            if files_of_size[size] > 1:  # so that few files have to be read for this
                digest = hashlib.sha256(path.read_bytes()).digest()
                if digest in seen:
                    self.skip("copy of another picture of its class")
                    continue
                seen.add(digest)
            yield path


def normalise(name: str) -> str:
    """A name without what differs between copies: case, accents, spaces, hyphens."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    return re.sub(r"[^a-z0-9]", "", letters)


def spellings() -> dict[str, str]:
    """The class of each normalised name.

    What stands in brackets may be left out, as in "Tinea (Ringworm) Body".
    """
    known = {normalise(other): name for other, name in OTHER_NAMES.items()}
    for name in TRAIN + ADDITIONAL + TEST:
        known[normalise(name)] = name
        known[normalise(re.sub(r"\(.*?\)", "", name))] = name
    return known


def pictures(folder: pathlib.Path) -> list[pathlib.Path]:
    """All image files below a folder, in order."""
    return sorted(
        pathlib.Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if pathlib.Path(name).suffix.lower() in SUFFIXES
    )


def class_of(path: pathlib.Path, known: dict[str, str]) -> str | None:
    """The class of a picture by its folder or else by its name; None for none."""
    folder = known.get(normalise(path.parent.name))
    return folder or known.get(normalise(path.stem).rstrip("0123456789"))


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(TRAIN),
) -> Splits:
    """Loads DermNet, images `[M, 84, 84, 3]`.

    Args:
      data_dir: where prepared data lives; None for the default.
      train_classes: training classes, the first of `TRAIN + ADDITIONAL`: 30 for
        DermNet-S, 150 for the full size.
    """
    return prepared.class_splits(
        "dermnet",
        data_dir,
        train_classes=train_classes,
        field="image",
        note="DermNet, 84x84",
    )
