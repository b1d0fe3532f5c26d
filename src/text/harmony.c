#include "text/harmony.h"

const struct nib_chat_format nib_chat_harmony = {
    .name = "harmony",
    .always_reasons = true,
    .controls =
        {
            [HARMONY_START] = {"<|start|>", .required = true},
            [HARMONY_END] = {"<|end|>", .required = true},
            [HARMONY_MESSAGE] = {"<|message|>", .required = true},
            [HARMONY_CHANNEL] = {"<|channel|>", .required = true},
            [HARMONY_CONSTRAIN] = {"<|constrain|>", .required = true},
            [HARMONY_RETURN] = {"<|return|>", .required = true, .stops = true},
            [HARMONY_CALL] = {"<|call|>", .required = true, .stops = true},
            [HARMONY_END_OF_TEXT] = {"<|endoftext|>", .stops = true},
        },
    .render = nib_harmony_render,
    .render_exact = nib_harmony_render_exact,
    .frame = nib_harmony_frame,
    .begin = nib_harmony_begin,
    .push = nib_harmony_push,
    .finish = nib_harmony_finish,
};
