{{/* The init containers of a tier: those of the values, then one for each model that it downloads. */}}
{{- define "specdec.initContainers" -}}
{{- $values := index .root.Values .tier -}}
{{- with $values.initContainers }}{{ toYaml . }}{{ end }}
{{- if include "specdec.downloads" $values }}
{{ include "specdec.download" (merge (dict "name" "download-model" "kind" $values.model.source "from" $values.model.huggingFace) .) }}
{{- end }}
{{- if eq .tier "gateway" }}
{{- range $index, $name := keys .root.Values.models | sortAlpha }}
{{- with (index $.root.Values.models $name).huggingFace }}
{{ include "specdec.download" (merge (dict "name" (printf "download-model-%d" (add 2 $index)) "kind" "huggingFace" "from" .) $) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The init container of one download: (dict "root" $ "tier" t "name" n "kind" k "from" .huggingFace). */}}
{{- define "specdec.download" -}}
{{- $values := index .root.Values .tier -}}
{{- $image := ternary $values.model.s3.image $values.image (eq .kind "s3") -}}
- name: {{ .name }}
  image: {{ include "specdec.image" (dict "root" .root "image" $image "foreign" (eq .kind "s3")) }}
  imagePullPolicy: {{ $image.pullPolicy }}
  securityContext: {{- include "specdec.overlay" (dict "base" (include "specdec.containerSecurity" .) "over" $values.securityContext) | nindent 4 }}
  {{- include (printf "specdec.download.%s" .kind) . | nindent 2 }}
    {{- with $values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
  resources: {{- toYaml $values.resources | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* The files of a model that a tier needs. A gateway reads only the tokenizer. */}}
{{- define "specdec.modelFiles" -}}
*.json *.jinja *.txt *.model{{ if ne .tier "gateway" }} *.safetensors{{ end }}
{{- end -}}

{{- define "specdec.download.huggingFace" -}}
{{- $values := index .root.Values .tier -}}
command: [python, -c]
args:
  - |
    import os
    from huggingface_hub import snapshot_download
    snapshot_download(
        os.environ["MODEL"], revision=os.environ["REVISION"], local_dir=os.environ["FOLDER"],
        allow_patterns=os.environ["FILES"].split(),
    )
env:
  - {name: HOME, value: /tmp}
  - {name: MODEL, value: {{ .from.repository | quote }}}
  - {name: REVISION, value: {{ .from.revision | quote }}}
  - {name: FOLDER, value: {{ include "specdec.repositoryPath" .from | quote }}}
  - {name: FILES, value: {{ include "specdec.modelFiles" . | quote }}}
  {{- with $values.model.huggingFace.tokenSecret }}
  {{- if .name }}
  - name: HF_TOKEN
    valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "specdec.download.s3" -}}
{{- $s3 := (index .root.Values .tier).model.s3 -}}
command: [aws]
args:
  - s3
  - sync
  - --no-progress
  {{- with $s3.endpoint }}
  - --endpoint-url={{ . }}
  {{- end }}
  - --exclude=*
  {{- range splitList " " (include "specdec.modelFiles" .) }}
  - --include={{ . }}
  {{- end }}
  - {{ $s3.uri }}
  - {{ include "specdec.modelPath" . }}
{{- with $s3.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
env:
  - {name: HOME, value: /tmp}
{{- end -}}
