"""A thin trainer over packed shards: reading a rank's part, attention of packs, Hugging Face models, the loop."""

if __name__ == "trainer":  # in a checkout, by the folder's own name
    from preshard.extras import refuse_import

    refuse_import(__name__)
