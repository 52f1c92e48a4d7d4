"""Long Range Arena: what its tasks are prepared into, one folder per task.

`data-prep/lra.sh TASK --dest DEST` writes DEST/NAME, where NAME is

- `listops`, `text`, `retrieval`: tokens as Skyformer's pipeline reads them (bytes, no end token);
- `listops-state-space`, `text-state-space`, `retrieval-state-space`: tokens of the state-space
  pipeline (characters, `</s>` at the end of each row), with `--pipeline state-space`;
- `listops-no-brackets`: ListOps without `]` (`--listops-drop-close-brackets`), Skyformer's tokens;
- `image`, `pathfinder`, `path-x`: pixels, which serve both pipelines.

A folder holds, for each SPLIT of train, valid and test (text has no valid with --valid-fraction 0):

- `SPLIT.label.npy`: int64 (rows,), the class, 0 to classes - 1;
- tokens: `dict.txt`, read with fairseq's Dictionary.load (its four specials come first and are not in
  the file: <s> 0, <pad> 1, </s> 2, <unk> 3), and `SPLIT.input0.{bin,idx}`, fairseq's memory-mapped
  indexed dataset of dictionary indices; retrieval also has `SPLIT.input1.{bin,idx}`. Rows are cut to
  `length` already, never padded, never empty; no <s> anywhere, </s> only where `end_token` is true;
- pixels: `SPLIT.pixels.npy`, uint8 (rows, length), row by row of the image, for
  np.load(path, mmap_mode="r"); no dictionary;
- `preparation.json`, once per folder (keys below).

Symbols in dict.txt: a byte is its decimal number (`0` to `255`, so byte b has index 4 + b), a
character is `U+` and its code point in hexadecimal (`U+0061`), ListOps has `0` to `9`, `[MIN`, `[MAX`,
`[MED`, `[SM`, `]`.

preparation.json:

- `task`: "listops", "text", "retrieval", "image", "pathfinder" or "path-x";
- `pipeline`: "skyformer", "state-space" or "both" (pixels);
- `inputs`: ["input0"], ["input0", "input1"] or ["pixels"];
- `classes`: their names in the order of the labels;
- `length`: the most positions a row may have (2000; 4000, or 4096 for state-space text; 1024; 16384);
- `vocabulary`: size of the dictionary with its four specials, absent for pixels;
- `end_token`: whether rows end in </s>; `close_brackets`: ListOps only;
- `origin`: "published" (all splits have the published sizes), "sample" (others) or "generated";
  `seed`: of the generator or of the split, null where nothing is drawn; `valid_fraction`: text only;
- `sources`: sha256 of each input file, by name; {} for generated data;
- `verified`: true if the input is an original archive of known sha256, else null;
- `skipped_empty_images`: Pathfinder and Path-X from files only, how many zero-byte images were left out;
- `splits`: {SPLIT: {"examples", "classes": {name: examples}, "shortest", "longest", "mean_length"}}
  (lengths in positions; of retrieval both texts together);
- `files`: sizes in bytes of all other files, by name.
"""
