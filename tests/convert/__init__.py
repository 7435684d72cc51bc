"""elmo_gpt_bert/convert: releases become folders for from_pretrained."""
