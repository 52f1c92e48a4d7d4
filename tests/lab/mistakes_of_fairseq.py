"""Command lines of fairseq's own commands that are wrong with the plugin, in the form of mistakes.py."""

LM = "--task language_modeling --sample-break-mode none --tokens-per-sample 32 --batch-size 8 --cpu"
EVAL_LM = f"eval_lm data {LM.replace('--task language_modeling ', '')} --path"
FAIRSEQ_TRAIN = (
    f"train data {LM} --arch transnormer_t1 --decoder-layers 2 --decoder-embed-dim 16 "
    "--decoder-attention-heads 2 --optimizer adam --lr 0.01 --max-update 1 --no-save"
)
INTERACTIVE = "interactive data --task language_modeling --cpu --path lm/checkpoint_last.pt --input"
GENERATE = f"generate data {LM} --path lm/checkpoint_last.pt"
VALIDATE = "validate data --task language_modeling --batch-size 8 --cpu --path"
OTHER_DATA = FAIRSEQ_TRAIN.replace(" data ", " order ")
CANNOT_BE_READ = "is not a fairseq checkpoint: its configuration cannot be read"
NOT_ITS_OWN = "is not the one the model was trained with"
ENCODER = "is an encoder, which cannot model language"
FAIRSEQ = [
    (f"{EVAL_LM} encoder/checkpoint_last.pt", ENCODER),
    (f"{EVAL_LM} text.pt", "is damaged or not a fairseq checkpoint"),
    (f"{EVAL_LM} code.pt", "nothing in it was run"),
    (f"{EVAL_LM} fake.pt", CANNOT_BE_READ),
    (f"{EVAL_LM} list.pt", CANNOT_BE_READ),
    (f"{EVAL_LM} words.pt", CANNOT_BE_READ),
    (f"{EVAL_LM} empty", "is a folder where a checkpoint belongs"),
    (f"{EVAL_LM} none.pt", "no checkpoint none.pt"),
    (
        f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " dictionary "),
        "dict.txt is not a fairseq dictionary",
    ),
    (f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " empty "), "no dictionary empty/dict.txt"),
    (f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " rows "), "test.bin is empty: the split has"),
    (f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " order "), NOT_ITS_OWN),
    (f"generate data {LM} --prefix-size 2 --path encoder/checkpoint_last.pt", ENCODER),
    (f"generate data {LM} --prefix-size 2 --path text.pt", "is damaged or not a fairseq checkpoint"),
    (f"{VALIDATE} code.pt", "nothing in it was run"),
    (f"{FAIRSEQ_TRAIN} --restore-file text.pt", "is damaged or not a fairseq checkpoint"),
    (f"{FAIRSEQ_TRAIN} --restore-file code.pt", "nothing in it was run"),
    (f"{FAIRSEQ_TRAIN} --restore-file list.pt", CANNOT_BE_READ),
    (f"{FAIRSEQ_TRAIN} --ddp-backend fully_sharded", "needs the package fairscale, which is not installed"),
    (f"{FAIRSEQ_TRAIN} --output-dictionary-size 20", "the models of this plugin have one dictionary"),
    (f"{FAIRSEQ_TRAIN} --restore-file empty", "is a folder where a checkpoint belongs"),
    (f"{FAIRSEQ_TRAIN} --finetune-from-model text.pt", "is damaged or not a fairseq checkpoint"),
    (
        f"{FAIRSEQ_TRAIN.replace(' adam ', ' sgd ')} --criterion chunked_cross_entropy --dropout 0 "
        "--restore-file lm/checkpoint_last.pt",
        "another --optimizer, FairseqAdam, not SGD",
    ),
    (f"{OTHER_DATA} --restore-file lm/checkpoint_last.pt", NOT_ITS_OWN),
    (f"{OTHER_DATA} --finetune-from-model lm/checkpoint_last.pt", NOT_ITS_OWN),
    (
        f"{FAIRSEQ_TRAIN} --decoder-embed-dim 32 --dropout 0 --restore-file lm/checkpoint_last.pt",
        "decoder_embed_dim is 16, not 32",
    ),
    (
        f"{FAIRSEQ_TRAIN} --decoder-embed-dim 32 --dropout 0 --restore-file lm/checkpoint_last.pt "
        "--allow-changed decoder_embed_dim",
        "does not fit the model: size mismatch for .*; give the settings it was trained with",
    ),
    (FAIRSEQ_TRAIN.replace("--batch-size 8 ", ""), "the size of the batch is missing; give --batch-size or"),
    (
        f"{FAIRSEQ_TRAIN} --add-bos-token --decoder-learned-pos",
        "samples of 33 tokens, but the model has 32 learned positions; give --max-target-positions 33",
    ),
    (
        f"{FAIRSEQ_TRAIN} --max-tokens-valid 9",
        "a batch of 9 tokens .*--max-tokens-valid.* is too small for the 32 tokens",
    ),
    (
        f"{FAIRSEQ_TRAIN} --dataset-impl raw",
        "'valid' of data cannot be read with --dataset-impl raw; leave it",
    ),
    (
        f"{EVAL_LM} lm/checkpoint_last.pt --context-window 40",
        "--context-window is 40; it must be less than --tokens-per-sample, 32, such as 16$",
    ),
    (f"{FAIRSEQ_TRAIN} --lr -1", "--lr is .-1.0., but must be positive"),
    (
        f"{FAIRSEQ_TRAIN} --lr __import__('os').abort()",
        "--lr: expected numbers such as 1 or 1,2, not",
    ),
    (f"{FAIRSEQ_TRAIN} --adam-betas (0.9,__import__('os').abort())", "--adam-betas is .*; give two numbers"),
    (f"{FAIRSEQ_TRAIN} --seed -1", "--seed is -1; it must be at least 0 and at most 4294967295"),
    (f"{FAIRSEQ_TRAIN} --max-update -5", "--max-update is -5; it must be at least 0$"),
    (f"{FAIRSEQ_TRAIN} --log-interval 0", "--log-interval is 0; it must be a whole number from 1 up"),
    (f"{FAIRSEQ_TRAIN} --adam-betas 0.9", "--adam-betas is '0.9'; give two numbers"),
    (f"{FAIRSEQ_TRAIN} --save-dir x/${{oc.env:HOME}}", r"--save-dir has a .*write the name itself"),
    (f"{EVAL_LM} ${{x}}.pt", r"--path has a .*write the name itself"),
    (f"{FAIRSEQ_TRAIN} --save-dir text.pt", "--save-dir text.pt: .*/text.pt is a file; name a folder"),
    (f"{FAIRSEQ_TRAIN} --log-file nowhere/x.log", "--log-file nowhere/x.log: its folder is missing"),
    (f"{FAIRSEQ_TRAIN} --log-file empty", "--log-file empty is not a file; name another file with"),
    *(
        (f"{command} --log-file data/dict.txt", "exists and is not a log of fairseq's; name another file")
        for command in (FAIRSEQ_TRAIN, f"{EVAL_LM} x.pt", GENERATE, f"{INTERACTIVE} text.pt")
    ),
    (f"{EVAL_LM} nan/checkpoint_last.pt", "holds weights that are NaN or infinite .the first: decoder"),
    (f"{VALIDATE} nan/checkpoint_last.pt", "holds weights that are NaN or infinite"),
    (f"{FAIRSEQ_TRAIN} --tensorboard-logdir text.pt/runs", "--tensorboard-logdir .*/text.pt is a file; name"),
    (f"{FAIRSEQ_TRAIN} --distributed-world-size 2", "this machine has 0; start each process yourself with"),
    (
        f"{FAIRSEQ_TRAIN} --distributed-world-size 2 --distributed-init-method tcp://127.0.0.1:9",
        "size is 2, but .* --distributed-no-spawn, --distributed-rank and --distributed-init-method tcp",
    ),
    *(
        (f"{command} --distributed-world-size 2", "--distributed-world-size is 2, but each process would")
        for command in (f"{EVAL_LM} x.pt", GENERATE, f"{INTERACTIVE} text.pt", f"{VALIDATE} x.pt")
    ),
    (f"{VALIDATE} x.pt --distributed-world-size 2 --distributed-no-spawn", "size is 2, but each process"),
    (f"{EVAL_LM} x.pt --bf16", "--bf16 is for training; leave it out, for float32, or"),
    (f"{GENERATE} --memory-efficient-bf16", "--memory-efficient-bf16 is for training"),
    (f"{INTERACTIVE} text.pt --amp", "--amp is for training"),
    (f"{VALIDATE} x.pt --bf16", "--bf16 is for training"),
    (f"{FAIRSEQ_TRAIN} --fp16", "--fp16 scales its loss on a GPU"),
    (f"{FAIRSEQ_TRAIN} --fp16 --amp", "--fp16 and --amp exclude each other"),
    (f"{FAIRSEQ_TRAIN} --fp16 --bf16", "--fp16 and --bf16 .* exclude each other"),
    (
        f"{FAIRSEQ_TRAIN} --criterion masked_lm",
        "masked_lm does not compute the loss of --task language_modeling; give",
    ),
    (f"{FAIRSEQ_TRAIN} --criterion adaptive_loss", "add --adaptive-softmax-cutoff, such as"),
    (
        f"{FAIRSEQ_TRAIN} --criterion adaptive_loss --adaptive-softmax-cutoff 9,20",
        "add --ddp-backend legacy_ddp",
    ),
    (
        f"{FAIRSEQ_TRAIN} --criterion chunked_cross_entropy --find-unused-parameters "
        "--decoder-output-bias learned",
        "--find-unused-parameters misses it; give --criterion cross_entropy or --ddp-backend legacy_ddp",
    ),
    (f"{FAIRSEQ_TRAIN} --task masked_lm", "transnormer_t1 is a language model, which --task masked_lm does"),
    (f"{INTERACTIVE} none.txt", "no file none.txt to read"),
    (f"{INTERACTIVE} empty", "--input is empty, a folder"),
    (f"{FAIRSEQ_TRAIN} --decoder-attention diag*99999999999", "'99999999999' is not a number of layers"),
    (
        f"{FAIRSEQ_TRAIN} --lr-scheduler cosine --warmup-updates 7 --max-update 7",
        "cosine would divide by zero with --warmup-updates 7 and --max-update 7",
    ),
    (f"{FAIRSEQ_TRAIN} --lr-scheduler inverse_sqrt --warmup-updates 0", "inverse_sqrt would divide by zero"),
    (f"{FAIRSEQ_TRAIN} --lr-scheduler tri_stage --decay-steps 0 --hold-steps 1", "tri_stage would divide"),
    (
        f"{FAIRSEQ_TRAIN} --lr-scheduler triangular --max-lr 1 --lr-period-updates 1",
        "triangular would divide",
    ),
    (f"{FAIRSEQ_TRAIN} --lr-scheduler step --lr-deacy-period 0", "step cannot be built: one of its settings"),
    (
        f"{FAIRSEQ_TRAIN} --lr-scheduler polynomial_decay",
        "--lr-scheduler polynomial_decay needs --total-num-update; add it",
    ),
    (f"{INTERACTIVE} config.yaml --bpe sentencepiece", "--bpe sentencepiece needs --sentencepiece-model"),
    ("validate data --batch-size 8 --cpu --path text.pt", "--task is missing; name the model's"),
    # the option is named
    (f"{FAIRSEQ_TRAIN} --distributed-world-size 0", "--distributed-world-size"),
    (f"{FAIRSEQ_TRAIN} --restore-file nowhere.pt", "--restore-file"),
    (f"{FAIRSEQ_TRAIN} --finetune-from-model nowhere.pt", "--finetune-from-model"),
    (f"{FAIRSEQ_TRAIN} --lr 0", "--lr"),
    (f"{FAIRSEQ_TRAIN} --clip-norm -1", "--clip-norm"),
    (f"{FAIRSEQ_TRAIN} --save-interval 0", "--save-interval"),
    (f"{FAIRSEQ_TRAIN} --save-interval-updates -4", "--save-interval-updates"),
    (f"{FAIRSEQ_TRAIN} --validate-interval 0", "--validate-interval"),
    (f"{FAIRSEQ_TRAIN} --valid-subset valid,foo", "--valid-subset"),
    (f"{FAIRSEQ_TRAIN} --train-subset trian", "--train-subset"),
    (f"{FAIRSEQ_TRAIN} --best-checkpoint-metric bleu", "--best-checkpoint-metric"),
    (f"{FAIRSEQ_TRAIN} --decoder-attention=", "--decoder-attention"),
    (f"{FAIRSEQ_TRAIN} --max-tokens 4", "--max-tokens"),
    (f"{FAIRSEQ_TRAIN} --save-dir /proc/x", "--save-dir"),
    (f"{FAIRSEQ_TRAIN} --amp", "--amp"),
    (f"{FAIRSEQ_TRAIN} --arch transnormer_t3", "transnormer_t1"),
    (f"{FAIRSEQ_TRAIN} --arch transformer_lm_gpt --decoder-norm rmsnorm", "--decoder-norm"),
    (f"{FAIRSEQ_TRAIN} --decoder-layer 2", "--decoder-layers"),
    (f"{FAIRSEQ_TRAIN} --criterion chunked_cross_entropy --label-smoothing 1.5", "at least 0 and at most 1"),
    (FAIRSEQ_TRAIN.replace(" data ", " data/dict.txt "), "DATA"),
    (EVAL_LM.removesuffix(" --path"), "--path"),
    (f"{EVAL_LM} lm/checkpoint_last.pt --context-window -3", "--context-window"),
    (f"{EVAL_LM} lm/checkpoint_last.pt --gen-subset dev", "--gen-subset"),
    (
        f"{GENERATE} --tokens-per-sample 16 --max-len-b 17",
        "the prompt holds </s>, the end of a line, where the text would end; leave it out .*-break-mode eos",
    ),
    (GENERATE, "a prompt of 32 tokens leaves nothing to write to a model of 32 positions; .* --prefix-size"),
    (f"{GENERATE} --prefix-size 9 --max-len-b 9", "a prompt of 9 tokens .* --max-len-b .* allows 9 in all"),
    (f"{GENERATE} --min-len 9 --max-len-b 8", "--min-len is 9, more than --max-len-b, 8"),
    (f"{GENERATE} --results-path text.pt", "--results-path text.pt: .* is a file; name a folder"),
    (f"{GENERATE} --constraints", "--constraints is not for language models"),
    (f"{GENERATE} --bpe sentencepiece --sentencepiece-model none", "no file none; name another one with"),
    (f"{GENERATE} --bpe sentencepiece --sentencepiece-model text.pt", "--bpe sentencepiece cannot be loaded"),
    (
        f"{GENERATE} --bpe gpt2 --gpt2-encoder-json text.pt --gpt2-vocab-bpe text.pt",
        "--bpe gpt2 cannot be loaded .*encoder-json",
    ),
    (f"{FAIRSEQ_TRAIN} --profile", "--profile is for nsys and needs a GPU"),
    (f"{GENERATE} --prefix-size -5", "--prefix-size"),
    (f"{GENERATE} --sampling --sampling-topp 2", "--sampling-topp"),
    (f"{GENERATE} --beam 0", "--beam"),
    (f"{GENERATE} --max-len-b 0", "--max-len-b"),
    ("generate data --batch-size 1 --cpu --path lm/checkpoint_last.pt", "--task"),
    (f"{INTERACTIVE} blank", "--input"),
    # several checkpoints, where one is meant or a part is missing
    (f"{EVAL_LM} lm/checkpoint_last.pt:none.pt", "no checkpoint none.pt"),
    (f"{EVAL_LM} fake.pt lm/checkpoint_last.pt", "several checkpoints are one word, with colons between"),
    (f"{VALIDATE} fake.pt:lm/checkpoint_last.pt", "--path names 2 checkpoints, but takes one; .* average"),
    (f"{GENERATE} --lm-path fake.pt:code.pt", "--lm-path names 2 checkpoints, but takes one"),
    (f"{GENERATE} --checkpoint-shard-count 2", "no checkpoint .*_last_part0.pt, a part of lm/.*-shard-count"),
    # weights and data that are not as they were saved
    (f"{EVAL_LM} missing.pt", 'missing.pt do not fit .*: Missing key.* "decoder.*"; name a checkpoint as'),
    (f"{EVAL_LM} extra.pt", 'extra.pt do not fit .*: Unexpected key.* "decoder.x" and 1 more; name a'),
    (
        f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " cut "),
        "test.bin holds 100 bytes instead of .*",
    ),
    (
        f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " cut-index "),
        "test.idx is not a fairseq index, or is cut off",
    ),
    (
        f"{EVAL_LM} lm/checkpoint_last.pt --num-shards 2 --shard-id 7",
        "--shard-id is 7, but --num-shards is 2",
    ),
    # settings that fairseq ignores or takes for something else
    (f"{VALIDATE} lm/checkpoint_last.pt --tokens-per-sample 4096", "4096, more than the 32 positions of the"),
    (f"{GENERATE} --num-shards 2", "--num-shards is for fairseq-eval-lm"),
    (f"{GENERATE} --beam 1 --nbest 5", "--nbest is 5, more than --beam, 1"),
    (f"{GENERATE} --sampling --sampling-topk 0", "--sampling-topk is 0; give a number above 0, or -1"),
    (f"{GENERATE} --sampling --sampling-topk 9999 --beam 1", "--sampling-topk is 9999, more than the"),
    (f"{GENERATE} --no-repeat-ngram-size -3", "--no-repeat-ngram-size is -3; it must be at least 0"),
    (f"{INTERACTIVE} config.yaml --buffer-size 0", "--buffer-size is 0; it must be a whole number from 1 up"),
    (f"{INTERACTIVE} config.yaml --lm-path none.pt", "no checkpoint none.pt"),
    (f"{INTERACTIVE} binary.yaml", "--input is binary.yaml, which is not UTF-8 text"),
    (
        f"{FAIRSEQ_TRAIN} --arch cosformer_lm --cosformer-length 9",
        "--cosformer-length is 9, less than",
    ),
]
