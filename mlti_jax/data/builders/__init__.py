"""TFDS builders of the paper's datasets, one module per dataset.

Importing a module registers its builder with TFDS:

    import mlti_jax.data.builders.nci
    builder = tfds.builder("nci", data_dir=DIR, file_format="array_record")
"""
