"""TFDS builders of the paper's datasets, one file each.

Importing a builder's module tells TFDS of it:

    import mlti_jax.data.builders.nci
    builder = tfds.builder("nci", data_dir=DIR, file_format="array_record")
"""
