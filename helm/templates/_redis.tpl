{{/* Redis has two roles, each a server of its own: sessions must not be evicted, blocks of keys and values may be. The helpers below
     take one role: (dict "root" $ "prefix" "redis" "redis" .Values.redis) or "redis-kv" and .Values.redis.kv. */}}

{{/* Whether a role's server is outside the chart. */}}
{{- define "specdec.redisIsExternal" -}}
{{- with .redis.external }}{{ if or .url .existingSecret .addresses }}true{{ end }}{{ end -}}
{{- end -}}

{{/* Whether the chart runs a role's server. */}}
{{- define "specdec.redisIsOwn" -}}
{{- if and .redis.dev.enabled (not (include "specdec.redisIsExternal" .)) }}true{{ end -}}
{{- end -}}

{{/* Whether a role has a server. */}}
{{- define "specdec.redisIsGiven" -}}
{{- if or (include "specdec.redisIsExternal" .) .redis.dev.enabled }}true{{ end -}}
{{- end -}}

{{/* Component of the Valkey that the chart runs for a role. */}}
{{- define "specdec.valkey" -}}
{{ .prefix | replace "redis" "valkey" }}
{{- end -}}

{{/* Environment of a gateway that names both stores. A URL is never in a ConfigMap, because it may contain a password. */}}
{{- define "specdec.redisEnv" -}}
{{- range $prefix, $redis := dict "redis" .Values.redis "redis-kv" .Values.redis.kv }}
{{- $role := dict "root" $ "prefix" $prefix "redis" $redis }}
{{- if include "specdec.redisIsGiven" $role }}
{{- include "specdec.redisRoleEnv" $role }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "specdec.redisRoleEnv" -}}
{{- $variable := ternary "SPECDEC_GATEWAY_REDIS_URL" "SPECDEC_GATEWAY_KV__REDIS_URL" (eq .prefix "redis") -}}
{{- $external := .redis.external }}
{{- if $external.existingSecret }}
- name: {{ $variable }}
  valueFrom: {secretKeyRef: {name: {{ $external.existingSecret }}, key: {{ $external.existingSecretKey }}}}
{{- else }}
{{- if and $external.passwordSecret.name $external.addresses }}
- name: {{ include "specdec.redisPassword" . }}
  valueFrom: {secretKeyRef: {name: {{ $external.passwordSecret.name }}, key: {{ $external.passwordSecret.key }}}}
{{- end }}
- name: {{ $variable }}
  value: {{ include "specdec.redisUrl" . | quote }}
{{- end }}
{{- end -}}

{{- define "specdec.redisPassword" -}}
{{ .prefix | upper | replace "-" "_" }}_PASSWORD
{{- end -}}

{{- define "specdec.redisUrl" -}}
{{- $external := .redis.external -}}
{{- if $external.url -}}
{{ $external.url }}
{{- else if $external.addresses -}}
{{- $scheme := ternary "rediss" "redis" $external.tls.enabled -}}
{{- if $external.sentinelMaster }}{{ $scheme = printf "%s+sentinel" $scheme }}{{ end -}}
{{- $user := $external.username -}}
{{- if $external.passwordSecret.name }}{{ $user = printf "%s:$(%s)" $user (include "specdec.redisPassword" .) }}{{ end -}}
{{- if $user }}{{ $user = printf "%s@" $user }}{{ end -}}
{{- $master := "" -}}
{{- if $external.sentinelMaster }}{{ $master = printf "/%s" $external.sentinelMaster }}{{ end -}}
{{ $scheme }}://{{ $user }}{{ join "," $external.addresses }}{{ $master }}/{{ int $external.database }}{{ include "specdec.redisTlsQuery" . }}
{{- else -}}
redis://{{ include "specdec.fullname" .root }}-{{ include "specdec.valkey" . }}:6379/0
{{- end -}}
{{- end -}}

{{- define "specdec.redisTlsQuery" -}}
{{- $query := list -}}
{{- $folder := .prefix -}}
{{- with .redis.external.tls -}}
{{- if and .enabled .caSecret }}{{ $query = append $query (printf "ssl_ca_certs=/%s-ca/%s" $folder .caKey) }}{{ end -}}
{{- if and .enabled .clientSecret }}
{{- $query = concat $query (list (printf "ssl_certfile=/%s-client/tls.crt" $folder) (printf "ssl_keyfile=/%s-client/tls.key" $folder)) }}
{{- end -}}
{{- end -}}
{{- if $query }}?{{ join "&" $query }}{{ end -}}
{{- end -}}

{{- define "specdec.redisMounts" -}}
{{- range $prefix, $redis := dict "redis" .Values.redis "redis-kv" .Values.redis.kv }}
{{- with $redis.external.tls }}
{{- if and .enabled .caSecret }}
- {name: {{ $prefix }}-ca, mountPath: /{{ $prefix }}-ca, readOnly: true}
{{- end }}
{{- if and .enabled .clientSecret }}
- {name: {{ $prefix }}-client, mountPath: /{{ $prefix }}-client, readOnly: true}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "specdec.redisVolumes" -}}
{{- range $prefix, $redis := dict "redis" .Values.redis "redis-kv" .Values.redis.kv }}
{{- with $redis.external.tls }}
{{- if and .enabled .caSecret }}
- name: {{ $prefix }}-ca
  secret: {secretName: {{ .caSecret }}, defaultMode: 0440}
{{- end }}
{{- if and .enabled .clientSecret }}
- name: {{ $prefix }}-client
  secret: {secretName: {{ .clientSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Ports of a role's server, for network policies: those of its addresses, or 6379, and those of the policy's values. */}}
{{- define "specdec.redisPorts" -}}
{{- $external := .redis.external -}}
{{- $hosts := $external.addresses -}}
{{- with $external.url }}{{ $hosts = list (urlParse .).host }}{{ end -}}
{{- $ports := list -}}
{{- range regexFindAll ":[0-9]+(,|$)" (join "," $hosts) -1 }}{{ $ports = append $ports (trimAll ":," . | int) }}{{ end -}}
{{- if include "specdec.redisIsOwn" . }}{{ toJson (list 6379) }}
{{- else -}}
{{- range .root.Values.networkPolicy.redisPorts }}{{ $ports = append $ports (int .) }}{{ end -}}
{{ toJson (uniq ($ports | default (list 6379))) }}
{{- end -}}
{{- end -}}

{{/* Identity of a role's external server. Two databases of one server share its memory and its eviction. */}}
{{- define "specdec.redisServer" -}}
{{- with .redis.external -}}
{{- if .existingSecret -}}
{{ .existingSecret }}/{{ .existingSecretKey }}
{{- else if .url -}}
{{ (urlParse .url).host }}/{{ if contains "+sentinel://" .url }}{{ (urlParse .url).path | trimPrefix "/" | splitList "/" | first }}{{ end }}
{{- else -}}
{{ sortAlpha .addresses | join "," }}/{{ .sentinelMaster }}
{{- end -}}
{{- end -}}
{{- end -}}
