// What causes and codes mean, in one place, so that all views say the same.

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
