"""Compares latchd's chat prompts with jinja2 running the templates themselves."""

import json
import os
import subprocess

import jinja2

# Copies of the formats' published templates, without their parts about tools.
TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
              "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
              "{% endif %}",
    "smollm2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
               "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
               "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
               "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
               "{% endif %}",
    "qwen2.5": "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + "
               "messages[0]['content'] + '<|im_end|>\\n' }}\n{%- else %}\n    {{- '<|im_start|>system\\nYou are "
               "Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n{%- endif %}\n"
               "{%- for message in messages %}\n    {%- if (message.role == \"user\") or (message.role == "
               "\"system\" and not loop.first) or (message.role == \"assistant\") %}\n        {{- '<|im_start|>' + "
               "message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n"
               "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    "qwen3": "{%- if messages[0].role == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0].content + "
             "'<|im_end|>\\n' }}\n{%- endif %}\n{%- for message in messages %}\n    {%- if message.role == \"user\" or "
             "(message.role == \"system\" and not loop.first) %}\n        {{- '<|im_start|>' + message.role + '\\n' + "
             "message.content + '<|im_end|>' + '\\n' }}\n    {%- elif message.role == \"assistant\" %}\n        "
             "{%- set content = message.content %}\n        {%- if '</think>' in content %}\n            "
             "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n        {%- endif %}\n        "
             "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}\n    {%- endif %}\n"
             "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
              "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
              "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
              "{{ content }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    "llama3.1": "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- set date_string = \"26 Jul 2024\" %}\n"
                "{%- endif %}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = "
                "messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n    "
                "{%- set system_message = \"\" %}\n{%- endif %}\n{{- \"<|start_header_id|>system<|end_header_id|>"
                "\\n\\n\" }}\n{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n{{- \"Today Date: \" + date_string + "
                "\"\\n\\n\" }}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}\n{%- for message in messages %}\n    "
                "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
                "'<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- "
                "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
              "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}"
              "{% endif %}{% for message in loop_messages %}{% if loop.index0 == 0 and system_message != false %}"
              "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
              "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + "
              "'[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + "
              "content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "mistral-v0.1": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
                    "message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + "
                    "eos_token + ' ' }}{% endif %}{% endfor %}",
    "mistral-v0.2": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
                    "message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + "
                    "eos_token}}{% endif %}{% endfor %}",
    "mistral-v0.3": "{%- if messages[0][\"role\"] == \"system\" %}\n    {%- set system_message = messages[0][\"content\"]"
                    " %}\n    {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set loop_messages = messages "
                    "%}\n{%- endif %}\n{{- bos_token }}\n{%- for message in loop_messages %}\n    {%- if message[\"role\"]"
                    " == \"user\" %}\n        {%- if loop.last and system_message is defined %}\n            {{- "
                    "\"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}\n        {%- else "
                    "%}\n            {{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}\n        {%- endif %}\n    "
                    "{%- elif message[\"role\"] == \"assistant\" %}\n        {{- \" \" + message[\"content\"]|trim + "
                    "eos_token}}\n    {%- endif %}\n{%- endfor %}\n",
}
SYSTEM = {"role": "system", "content": " Be brief.\n"}
USER = {"role": "user", "content": " What is 'x'?\n\nSay {{it}}. "}
ANSWER = {"role": "assistant", "content": " <think>\nhm\n</think>\n\nIt is x. "}
CONVERSATIONS = [[USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER, ANSWER, USER]]


def compare(program, model, template, bos, eos):
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    wrong = 0
    for messages in CONVERSATIONS:
        if "[INST]" in template and "system" not in template and messages[0]["role"] == "system":
            continue  # the template itself has no place for a system prompt
        want = environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos)
        records = b""
        for message in messages:
            raw = (message["role"] + "\n" + message["content"]).encode()
            records += str(len(raw)).encode() + b"\n" + raw
        done = subprocess.run([program, model, "--chat"], input=records, capture_output=True, check=False)
        got = bytes.fromhex(done.stdout.decode()).decode()
        if got != want:
            wrong += 1
            print(f"chat {model}: got {got!r}\n  expected {want!r}\n  {done.stderr.decode()}")
    return wrong


def run(program, work):
    """Every template above, with a tokenizer of a few tokens. Returns how many prompts differ."""
    wrong = 0
    for name, template in TEMPLATES.items():
        folder = os.path.join(work, "chat-" + name)
        os.makedirs(folder, exist_ok=True)
        tokenizer = {
            "added_tokens": [{"id": 1, "content": "<bos>", "special": True}, {"id": 2, "content": "<eos>", "special": True}],
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
            "decoder": {"type": "ByteLevel"},
        }
        config = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "chat_template": template}
        for file, data in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
                json.dump(data, f)
        wrong += compare(program, folder, template, "<bos>", "<eos>")
    print(f"chat: {len(TEMPLATES)} templates, {wrong} prompts differ")
    return wrong
