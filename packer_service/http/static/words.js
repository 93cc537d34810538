// What each measure means, in one place, so that all views say the same.

export const MEASURES = {
  gather_path: {
    label: "Gather path",
    unit: "× tile floor",
    explain:
      "The busiest rank's tiles, when every rank first gathers the keys it needs. 1 is perfect: every rank computes " +
      "the tile floor, which is the tiles of the whole mask divided by the ring degree.",
  },
  ring_path: {
    label: "Ring path",
    unit: "× tile floor",
    explain:
      "Keys travel around the ring, and every step waits for its slowest rank: the sum over steps of the busiest rank's tiles. " +
      "1 is perfect; it is never less than the gather path.",
  },
  traffic: {
    label: "KV traffic",
    unit: "of all keys",
    share: true,
    explain: "Keys that ranks need but do not hold, as a share of what gathering everything would move. 0 means that none move.",
  },
  attention: {
    label: "Attention imbalance",
    unit: "max ÷ mean",
    explain: "Allowed query-key pairs of the most loaded rank over the mean of all ranks. 1 is perfect.",
  },
  image_load: {
    label: "Imbalance of encoding",
    unit: "max ÷ mean",
    explain:
      "The vision encoder's work on the rank that has the most over the mean of all ranks. Frames and stills are not " +
      "split, so 1 is not always possible: a pack with one still for eight ranks has 8.",
  },
};

export const LEGEND =
  "Tile floor: the mask's tiles of 128 × 128 tokens divided by the ring degree, which no layout can beat. Paths: the " +
  "tiles that the slowest rank computes, over the floor. KV traffic: keys that ranks fetch, of all that they could. " +
  "Attention imbalance: the busiest rank's allowed pairs over the mean.";

export const PADDING = {
  alignment: "behind documents, so that layouts can cut them evenly",
  image_budget: "in packs that the images need beyond those that the tokens need",
  packing: "in packs beyond those that tokens and images need",
  remainder: "what is missing to fill a whole number of packs: unavoidable",
};

export const CODES = {
  bad_row: "it cannot be read, or has no form that is known",
  duplicate_row: "an equal row of this id is packed",
  empty: "it holds nothing to learn from",
  missing_media: "an image or video is missing",
  unreachable_media: "a store did not give an image or video",
  bad_image: "an image cannot be decoded",
  bad_video: "a video cannot be decoded",
  too_long: "longer than a pack",
  too_many_images: "more crops than a pack may hold",
  too_many_patches: "more patches than a pack may hold",
  decode_failed: "an image or video changed or broke between measuring and writing",
};
