"""Command lines that cannot be, each with the pattern of the sentence it gets; see test_bad_input.py.

`CASES` are the project's commands, `RUNS` those on what a run of each kind has left; fairseq's own with the
plugin are in mistakes_of_fairseq.py. Files have the names that the fixtures `place` and `runs` give them.
"""

NO_COUNT = "'0' is not a whole number of 1 or more"
EVAL = "scripts/eval_ppl.sh"
TRAIN_LM = "scripts/train_lm.sh"
TRAIN = f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir new"
FINETUNE = "scripts/finetune_glue.sh encoder/checkpoint_last.pt"
GLUE = f"{FINETUNE} --data glue --out new --task RTE --learning-rates 0.01"
CASES = [
    # what is no checkpoint of the right kind
    (f"{EVAL} encoder/checkpoint_last.pt data", "holds an encoder, no language model"),
    (f"{EVAL} text.pt data", "is damaged or no checkpoint"),
    (f"{EVAL} fake.pt data", "its configuration cannot be read"),
    (f"{EVAL} list.pt data", "its configuration cannot be read"),
    (f"{EVAL} words.pt data", "its configuration cannot be read"),
    ("scripts/eval_mlm.sh lm/checkpoint_last.pt mlm --out new", "holds no RoBERTa encoder"),
    ("scripts/eval_mlm.sh text.pt mlm", "is damaged or no checkpoint"),
    ("scripts/predict_glue.sh text.pt --task RTE --input config.yaml", "."),
    # evaluations that would lie
    (f"{EVAL} lm/checkpoint_last.pt data --tokens-per-sample 4096", "was trained for 32 positions"),
    (f"{EVAL} lm/checkpoint_last.pt data --tokens-per-sample 0", "--tokens-per-sample is 0"),
    (f"{EVAL} lm/checkpoint_last.pt data --context-window 300", "--context-window is 300; .*, such as 16$"),
    (f"{EVAL} lm/checkpoint_last.pt data --batch-size 0", "--batch-size is 0"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides {{", "--model-overrides is '{'"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides open(1)", "--model-overrides is 'open"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides [1]", "--model-overrides is"),
    (f"{EVAL} lm/checkpoint_last.pt data --out empty", "which is a folder"),
    (f"{EVAL} lm/checkpoint_last.pt data --split none", "has no split none; it has train, valid, test$"),
    (f"{EVAL} lm/checkpoint_last.pt data --split valid,", "--split: 'valid,' is not one name"),
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt mlm --split dev", "has no split dev; it has train, "),
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt mlm --split ,", "--split: ',' is not one name"),
    # images and Long Range Arena
    ("scripts/sample_images.sh none/checkpoint_best.pt", "no checkpoint .*none/checkpoint_best.pt; name one"),
    (
        "scripts/export_hf.sh lra.pt new",
        "a model of Long Range Arena; only language models and RoBERTa encoders",
    ),
    ("scripts/analyse.sh attention lra.pt --data empty", "of Long Range Arena; .* can be analysed$"),
    ("scripts/analyse.sh bounds pixels.pt --data empty", "holds a model of images; .* can be analysed$"),
    (
        "scripts/analyse.sh attention lm/checkpoint_last.pt --data data --split dev",
        "has no split dev; it has",
    ),
    # what is imported
    ("scripts/import_hf.sh empty mlm new", "empty holds no config.json; name the folder with config.json"),
    ("scripts/import_hf.sh empty mlm new --arch foo", "no encoder 'foo'; choose one of .*roberta_lln, "),
    # damaged data
    (f"{EVAL} lm/checkpoint_last.pt list", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt words", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt sizes", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt dictionary", "dict.txt is no text"),
    (f"{EVAL} lm/checkpoint_last.pt rows", "the test split of .* has no row"),
    (f"{TRAIN_LM} config.yaml rows --gpus 0 --save-dir new", "the train split of .* has no row"),
    (f"{TRAIN_LM} config.yaml list --gpus 0 --save-dir new", "preparation.json is damaged"),
    # configurations
    (f"{TRAIN_LM} latin.yaml data --gpus 0", "latin.yaml cannot be read"),
    (f"{TRAIN_LM} binary.yaml data --gpus 0", "binary.yaml cannot be read"),
    (f"{TRAIN_LM} configs/wikitext2/transnormer_t3.yaml", "nearest below .* are c[^,]*, [^,]*, [^,]*$"),
    (f"{TRAIN_LM} misspelt.yaml data --gpus 0", "no .*/bsae.yaml, which the defaults .*; did you mean base?"),
    (f"{TRAIN_LM} five.yaml data --gpus 0", "five.yaml: optimization is 5; write settings below it"),
    (f"{TRAIN_LM} number.yaml data --gpus 0", "number.yaml: 1 is no group of settings"),
    (f"{TRAIN_LM} empty data --gpus 0", "CONFIG is the folder empty; name one of its YAML files: none"),
    (f"{TRAIN} --arch lra_skyformer", "--arch lra_skyformer does not go with .*yaml, which sets decoder"),
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt mlm --out=", "--out: it is empty; name a file"),
    (f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir data/run", "prepared data; choose another --save-"),
    ("scripts/report.sh text.pt", "RUNS: .*text.pt is a file"),
    (f"{TRAIN_LM} text.pt data --gpus 0", "text.pt is no configuration: its name does not end in .yaml"),
    # flags, found out before the folder of the run is made
    (f"{TRAIN_LM} config.yaml data --gpus -1", "--gpus is -1; it must be 0 or more"),
    (f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir text.pt", "text.pt is a file; name a folder"),
    (f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir /proc/no/run", "--save-dir .* cannot be written into"),
    (f"{TRAIN} --max-update abc", "--max-update: invalid"),
    (f"{TRAIN} --update-freq 0", "--update-freq is .0.; it must be a whole number from 1 up"),
    (f"{TRAIN} --update-freq abc", "--update-freq: expected numbers such as 1"),
    (f"{TRAIN} --batch-size 0", "--batch-size is 0"),
    (f"{TRAIN} --batch-size -3", "--batch-size is -3"),
    (f"{TRAIN} --tokens-per-sample 0", "--tokens-per-sample is 0"),
    (f"{TRAIN} --lr nan", "--lr: expected numbers such as 1 or 1,2, not 'nan'"),
    (f"{TRAIN} --lr -1", "--lr is .-1.0., but must be positive"),
    (f"{TRAIN} --task masked_lm", "not for train_lm.sh; leave it out, or .* scripts/pretrain_roberta.sh"),
    (f"{TRAIN} --criterion masked_lm", "is for encoders, but transnormer_t1 is a language model"),
    (f"{TRAIN} --fp16", "--fp16 scales its loss on a GPU; on the CPU take --bf16"),
    (f"{TRAIN} --fp16 --bf16", "--fp16 and --bf16 .* exclude each other"),
    (f"{TRAIN} --dropout nan", "--dropout is nan"),
    (f"{TRAIN} --clip-norm inf", "--clip-norm is inf"),
    (f"{TRAIN} --lln-a nan", "--lln-a is nan"),
    (f"{TRAIN} --cosformer-length nan", "--cosformer-length"),
    (f"{TRAIN} --optimizer-overrides lr", "--optimizer-overrides is 'lr'"),
    (f"{TRAIN} --update-ordered-indices-seed", "does nothing without --update-epoch-batch-itr"),
    (f"{TRAIN} --no-such-flag 1", "unrecognized arguments: --no-such-flag"),
    (f"{TRAIN} --decoder-attention diag*99999999999", "is not a number of layers at character 1"),
    (f"{TRAIN} --arch transnormer_t9", "--arch is 'transnormer_t9'.* transnormer_t1"),
    # data-prep
    ("data-prep/roberta.sh text --from empty --dest new --tokenizer sentencepiece --vocab-size 0", NO_COUNT),
    ("data-prep/wikitext.sh wikitext-2 --dest new --tokenizer sentencepiece --vocab-size 0", NO_COUNT),
    ("data-prep/bundled_corpus.sh --dest new --vocab-size 0", NO_COUNT),
    (
        "data-prep/wikitext.sh wikitext-2 --dest new/folder --from none",
        "none .given with --from. does not exist",
    ),
    ("data-prep/roberta.sh text --from none --dest new/data", "none .* does not exist"),
    ("data-prep/lra.sh text --from none --dest new", "there is no none"),
    (
        "data-prep/glue.sh empty --tokenizer-from mlm --dest new",
        "holds none of GLUE's tasks; name the folder .* CoLA, ",
    ),
    # studies
    ("scripts/study.sh copy --preset tiny --out new --lr x", "no option --lr; .*fairseq-train come after --"),
    ("scripts/study.sh copy --preset tiny --out new --method nothing", "--method"),
    ("scripts/study.sh ablations --preset x --out new", "has no such YAML; choose from paper, small$"),
    ("scripts/quickstart.sh --updates 0", NO_COUNT),
    ("scripts/study.sh ablations --ablation nothing --out new", "--ablation"),
    ("scripts/study.sh roberta_glue --data none --out new", "--data .*none: there is no such folder"),
    ("scripts/study.sh roberta_glue --start none.pt --out new", "no checkpoint .*none.pt"),
    ("scripts/study.sh roberta --method lnl --out new", "--method lnl: .* did you mean lln"),
    (f"{FINETUNE} --learning-rates inf", "'inf' is not one or several numbers"),
    (f"{FINETUNE} --data empty", "no prepared task"),
    ("scripts/study.sh nothing", "there is no study nothing; choose from .*ablations"),
    ("scripts/study.sh coppy", "copy"),
    ("scripts/study.sh missing.yaml", "missing.yaml"),
    ("scripts/study.sh", "--list"),
    ("scripts/study.sh copy --methd elu", "--method"),
    ("scripts/study.sh copy --seeds 0", "--seeds"),
    ("scripts/study.sh copy --out config.yaml --method elu", "--out"),
    ("scripts/study.sh copy --data nowhere", "--data"),
    (f"{GLUE} --task rt", "GLUE task rt .did you mean RTE"),
    (f"{GLUE} --task RTE,cola", "GLUE task cola .did you mean CoLA"),
    (f"{GLUE} --data nowhere", "no folder .*nowhere; prepare it with data-prep/glue.sh"),
    (f"{GLUE} --out /proc/none", "/proc/none"),
    (f"{GLUE} --seeds 0", "--seeds: '0'"),
    (f"{GLUE} --learning-rates 0.1,x", "--learning-rates: '0.1,x'"),
    (f"{GLUE} --jobs 0", "--jobs: '0'"),
    (f"{GLUE} --max-update 0", "--max-update: '0'"),
    (f"{GLUE} --no-such-flag", "--no-such-flag"),
    # benchmarks
    ("benchmarks.operator_cost --out new --lengths 0", "--lengths: '0' is not a whole number"),
    ("benchmarks.operator_cost --out new --dim -1", "--dim: '-1' is not a whole number"),
    ("benchmarks.operator_cost --out config.yaml", "cannot write .*config.yaml.*; choose another --out"),
    ("benchmarks.operator_cost --out /proc/none", "cannot write /proc/none"),
    ("benchmarks.operator_cost --out new --fast-transformers none", "none holds no fast-transformers"),
    ("benchmarks.packed_cost data --out config.yaml", "cannot write config.yaml.*; choose another --out"),
    (
        "benchmarks.loss_cost --out config.yaml --restart",
        "cannot write .*config.yaml.*; choose another --out",
    ),
    ("benchmarks.model_parts_cost --out config.yaml", "cannot write .*config.yaml.*; choose another --out"),
    ("benchmarks.lm_cost --quick --out empty", "empty, which is a folder; name a file with --out"),
    ("benchmarks.lm_cost --quick --out /proc/none/new.json", "cannot write /proc/none/new.json"),
    ("benchmarks.operator_cost --out new --rounds 0", "--rounds: '0' is not a whole number"),
    ("benchmarks.lm_cost --out new --memory-limit-gib 0", "--memory-limit-gib: '0' is not a number above 0"),
    (
        "benchmarks.lra_speed --out new --memory-limit-gib 0.5",
        "PyTorch and fairseq need to start; give 1 or more",
    ),
    ("benchmarks.lm_cost --out new --time-limit nan", "--time-limit: 'nan' is not a number above 0"),
    ("benchmarks.lm_cost --out new --architectures nothing", "unknown architecture"),
]
TRAIN_VANILLA = TRAIN.replace("config.yaml", "vanilla.yaml")
TRAIN_LRA = "scripts/train_lra.sh lra.yaml listops --gpus 0 --save-dir new"
PLAN = "scripts/train_lra.sh text.yaml empty --gpus 0 --dry-run --encoder-attention"
RESUME = TRAIN.replace("new", "run --max-update 9")
TRAINED = "lm/checkpoint_last.pt"
EVALUATE = f"{EVAL} {TRAINED} data"
CARRIED = f"{EVALUATE} --carry-state"
SAMPLE = "scripts/sample_images.sh pixels/checkpoint_last.pt"
PREDICT = "scripts/predict_glue.sh rte/checkpoint_best.pt --out new.tsv --task"
EXPORT = f"scripts/export_hf.sh {TRAINED}"
# What is no checkpoint, and what is said of it.
CHECKPOINTS = {
    "none": "no checkpoint", "nothing": "is damaged", "half": "is damaged", "foreign": "holds no model",
    "bare": "holds no configuration", "evil": "nothing in it was run", "pickled": "nothing in it was run",
}  # fmt: skip
# Copies of the corpus with one file cut to so many bytes, or without it, and what is said of it.
CUT = {
    "shorter-bin": ("train.bin", -2, "train.bin holds"),
    "magic": ("train.idx", 7, "train.idx is no index"),
    "shorter-idx": ("train.idx", -8, "train.idx is truncated"),
    "no-valid": ("valid.idx", None, "has no valid.idx"),
    "no-dict": ("dict.txt", None, "has no dict.txt"),
    "manifest": ("preparation.json", 1, "preparation.json is damaged"),
    "shorter-test": ("test.bin", -1, "test.bin holds"),
}
HEADER = "index\tsentence1\tsentence2\tlabel\n"
ROWS = {
    "good": HEADER + "0\tA\tB\tentailment\n",
    "blank": HEADER + "0\tThe cat .\t\tentailment\n",
    "two": "index\tsentence1\tlabel\n0\tThe cat .\tentailment\n",
    "narrow": HEADER + "0\tThe cat .\tThe dog .\n",
    "label": HEADER + "0\tA\tB\tneutral\n",
    "header": HEADER,
    "empty": "",
    "cola": "x\t1\t\tThe cat sat .\n",
}
RUNS = [
    # what cannot be trained
    (f"{TRAIN_VANILLA} --decoder-attention-heads 3", "--decoder-attention-heads"),
    (f"{TRAIN_VANILLA} --max-target-positions 8", "positions"),
    (f"{TRAIN} --max-target-positions 8", "positions"),
    (f"{TRAIN} --diag-block-size 0", "block"),
    (f"{TRAIN} --decoder-attention diag,nrom", "'nrom'"),
    (f"{TRAIN} --learning-rate 1", "--learning-rate"),
    (f"{TRAIN} --lr-scheduler cosine --warmup-updates 7 --max-update 7", "--warmup-updates 7"),
    (f"{TRAIN_LRA} --max-positions 32", "longer than the 32"),
    (f"{TRAIN_LRA} --encoder-attention elu,nrom", "'nrom'"),
    (f"{TRAIN_LRA} --warmup-updates 1", "--warmup-updates is 1"),
    (f"{TRAIN_LRA} --pooling max", "--pooling"),
    (f"{PLAN} ell", "--encoder-attention"),
    (f"{PLAN} elu*3", "--encoder-attention"),
    ("scripts/train_lm.sh masked.yaml data --gpus 0 --save-dir new", "scripts/pretrain_roberta.sh"),
    # another run than the one whose folder it is
    (RESUME.replace("config.yaml", "vanilla.yaml"), "arch is 'transnormer_t1', not 'transformer_lm'"),
    (f"{RESUME} --decoder-attention norm*2", "decoder_attention is None, not 'norm*2'"),
    (f"{RESUME} --tokens-per-sample 16", "--allow-changed tokens_per_sample"),
    (f"{RESUME} --dropout 0.5 --allow-changed attention_dropout", "--allow-changed dropout"),
    (RESUME.replace(" data ", " order "), "another dictionary"),
    # damaged data
    *((TRAIN.replace(" data ", f" {name} "), CUT[name][2]) for name in CUT if name != "shorter-test"),
    *((EVALUATE.replace(" data", f" {name}"), CUT[name][2]) for name in ("shorter-test", "manifest")),
    (TRAIN.replace(" data ", " nowhere "), "no data folder"),
    # what is no checkpoint, or none to start from
    *((f"{EVAL} {name}.pt data", sign) for name, sign in CHECKPOINTS.items()),
    *((f"{TRAIN} --restore-file {name}.pt", sign) for name, sign in CHECKPOINTS.items()),
    (f"{TRAIN} --restore-file {TRAINED} --decoder-embed-dim 32", "decoder_embed_dim is 16, not 32"),
    (f"{TRAIN} --restore-file {TRAINED} --criterion cross_entropy", "another --criterion, "),
    (f"{TRAIN} --finetune-from-model {TRAINED} --reset-optimizer", "excludes --reset-optimizer"),
    (f"{TRAIN} --finetune-from-model {TRAINED} --restore-file {TRAINED}", "excludes --restore-file"),
    (f"{TRAIN} --sample-break-mode eos --tokens-per-sample 2", "no sample is left"),
    # perplexities that would lie
    (f"{EVALUATE} --context-window 32", "--context-window"),
    (f"{EVALUATE} --max-tokens 4", "--max-tokens"),
    (f"{EVALUATE} --num-shards 999 --shard-id 998", "not one token was evaluated"),
    (f"{EVALUATE} --no-such-flag", "--no-such-flag"),
    (f"{EVALUATE} --split valid,test --out x.json", "--out"),
    (f"{EVALUATE} --out /proc/none/x.json", "/proc/none/x.json"),
    (f"{EVALUATE} --streams 2", "--carry-state"),
    (EVALUATE.removesuffix(" data"), "DATA"),
    (EVALUATE.replace(" data", " order"), "order/dict.txt differs from"),
    (EVALUATE.replace(" data", " shorter"), "shorter/dict.txt has"),
    (EVALUATE.replace(" data", " nowhere"), "no data folder"),
    (f"{CARRIED} --segment 5000 --streams 3", "--segment"),
    (f"{CARRIED} --streams 100000", "--streams"),
    (f"{CARRIED} --reset-at-documents", "--reset-at-documents"),
    (f"{CARRIED} --context-window 4", "--context-window"),
    (f"{CARRIED} --tokens-per-sample 16", "--tokens-per-sample"),
    (f"{CARRIED} --segment 0", "--segment"),
    # other evaluations
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt tokeniser", "another tokeniser"),
    (f"scripts/evaluate_lra.sh {TRAINED} listops --out new.json", "no model of Long Range Arena"),
    ("scripts/evaluate_lra.sh begun.pt listops", "incomplete"),
    (f"scripts/eval_images.sh {TRAINED} --out new.json", "not of pixels or image_classification"),
    (f"scripts/eval_images.sh {TRAINED} --out good.tsv", "evaluate it with scripts/eval_ppl.sh"),
    (
        f"{EVALUATE.replace(TRAINED, 'pixels/checkpoint_last.pt')} --out good.tsv",
        "with scripts/eval_images.sh",
    ),
    (
        f"{EVALUATE.replace(TRAINED, 'pixels/checkpoint_last.pt')} --out new.json",
        "a model of images, no language",
    ),
    ("scripts/eval_images.sh pixels/checkpoint_last.pt --split dev", "no split dev"),
    ("scripts/eval_images.sh pixels/checkpoint_last.pt levels", "4 x 3 x 1 of 6 levels, but"),
    (f"scripts/sample_images.sh {TRAINED}", "not of pixels"),
    (f"{SAMPLE} --complete 1.5", "--complete is 1.5"),
    (f"{SAMPLE} --complete 0.05", "--complete 0.05"),
    (f"{SAMPLE} --complete 0.5 --count 12", "--count is 12"),
    (f"{SAMPLE} --batch-size 0", "--batch-size"),
    (f"{SAMPLE} --seed -1", "--seed is -1"),
    (f"{SAMPLE} --out /nowhere/x.png", "/nowhere/x.png"),
    # predictions
    (f"{PREDICT} RTE --input blank.tsv", "line 2"),
    (f"{PREDICT} RTE --input two.tsv", "'sentence2'"),
    (f"{PREDICT} RTE --input narrow.tsv", "3 columns instead of 4"),
    (f"{PREDICT} RTE --input label.tsv", "'neutral'"),
    (f"{PREDICT} RTE --input header.tsv", "header.tsv holds no example"),
    (f"{PREDICT} RTE --input empty.tsv", "line 1"),
    (f"{PREDICT} RTE --input nowhere.tsv", "nowhere.tsv"),
    (f"{PREDICT} RET --input good.tsv", "did you mean RTE?"),
    (f"{PREDICT} mnli --input good.tsv", "did you mean MNLI?"),
    (f"{PREDICT} CoLA --input cola.tsv", "fine-tuned for RTE, not for CoLA"),
    (f"{PREDICT} RTE --input good.tsv --out nowhere/out.tsv", "nowhere/out.tsv"),
    (f"{PREDICT} RTE --input good.tsv --no-such-flag", "--no-such-flag"),
    (
        f"{PREDICT} RTE --input good.tsv".replace("rte/checkpoint_best", "encoder/checkpoint_last"),
        "no classif",
    ),
    # exports
    (f"{EXPORT} thesis", "export_hf.sh has not written"),
    (f"{EXPORT.replace('last', 'none')} new", "no checkpoint"),
    ("scripts/export_hf.sh alone/checkpoint_last.pt new", "dict.txt is missing"),
    (f"{EXPORT} new --head x", "'x'"),
]
