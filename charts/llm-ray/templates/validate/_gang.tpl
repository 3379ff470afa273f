{{/* Gangs that would never start, or would not be one. Usage: $ */}}
{{- define "llm-ray.validate.gang" -}}
{{- $gang := .Values.gang -}}
{{- if eq $gang.provider "none" -}}
{{- include "llm-ray.refuseAll" (list (dict "gang.queue" $gang.queue "gang.priorityClassName" $gang.priorityClassName)
  "be empty while gang.provider is none, because nothing would read it" "set gang.provider to kuberay, podgroup or kueue") -}}
{{- else if eq $gang.provider "podgroup" -}}
{{- include "llm-ray.validate.podgroup" . -}}
{{- else if eq $gang.provider "kueue" -}}
{{- include "llm-ray.validate.kueue" . -}}
{{- else if and (ne $gang.scheduler "volcano") $gang.priorityClassName -}}
{{- include "llm-ray.refuse" (list "gang.priorityClassName" $gang.priorityClassName (printf "be empty with gang.scheduler %s, which takes no class for the group" $gang.scheduler) "set priorityClassName of head and workers instead") -}}
{{- end -}}
{{- if ne $gang.provider "kueue" -}}
{{- include "llm-ray.refuseAll" (list (dict "gang.kueue.requiredTopology" $gang.kueue.requiredTopology "gang.kueue.preferredTopology" $gang.kueue.preferredTopology
  "gang.kueue.elastic" $gang.kueue.elastic) (printf "be unset with gang.provider %s" $gang.provider) "set gang.provider to kueue") -}}
{{- end -}}
{{- include "llm-ray.validate.networkTopology" . -}}
{{- end -}}

{{/* A PodGroup has one size and one name; a RayService's second cluster would take the first one's. Usage: $ */}}
{{- define "llm-ray.validate.podgroup" -}}
{{- if and (eq (include "llm-ray.kind" .) "RayService") (ne (include "llm-ray.rolloutStrategy" .) "none") -}}
{{- include "llm-ray.refuse" (list "gang.provider" "podgroup" (printf "be kuberay with kind RayService and rollout.strategy %s: the new cluster would share the old one's PodGroup, which the old pods already fill" (include "llm-ray.rolloutStrategy" .)) "set gang.provider to kuberay, or rollout.strategy to none") -}}
{{- end -}}
{{- end -}}

{{/* What Kueue's webhook refuses, and what would make it evict the cluster. Usage: $ */}}
{{- define "llm-ray.validate.kueue" -}}
{{- $kueue := .Values.gang.kueue -}}
{{- if not .Values.gang.queue -}}
{{- include "llm-ray.refuse" (list "gang.queue" "" "name a LocalQueue with gang.provider kueue; without one Kueue lets the cluster pass" "set it to one that kubectl get localqueues shows") -}}
{{- end -}}
{{- if and (ne .Values.autoscaling.mode "fixed") (not $kueue.elastic) -}}
{{- include "llm-ray.refuse" (list "gang.kueue.elastic" false (printf "be true with autoscaling.mode %s: Kueue suspends any other cluster whose size changes" .Values.autoscaling.mode) "set it to true and switch on ElasticJobsViaWorkloadSlices in Kueue, or set autoscaling.mode to fixed") -}}
{{- end -}}
{{- $groups := (include "llm-ray.groups" . | fromJson).groups | len -}}
{{- if gt $groups 17 -}}
{{- include "llm-ray.refuse" (list "workers" (printf "%d groups" $groups) "be at most 17 groups with gang.provider kueue, whose workloads have 18 pod sets" "merge groups, or choose another gang.provider") -}}
{{- end -}}
{{- if and $kueue.requiredTopology $kueue.preferredTopology -}}
{{- include "llm-ray.refuse" (list "gang.kueue.preferredTopology" $kueue.preferredTopology "be empty beside gang.kueue.requiredTopology, as Kueue takes one of them" "keep one") -}}
{{- end -}}
{{- if and (eq (include "llm-ray.kind" .) "RayService") (ne .Values.kuberay.version "1.7") -}}
{{- include "llm-ray.refuse" (list "gang.provider" "kueue" (printf "go with kind RayCluster on KubeRay %s, whose RayService cannot be suspended" .Values.kuberay.version) "upgrade the operator to 1.7 and say so in kuberay.version, or set kind to RayCluster") -}}
{{- end -}}
{{- end -}}

{{/* Volcano's network topology. Usage: $ */}}
{{- define "llm-ray.validate.networkTopology" -}}
{{- $gang := .Values.gang -}}
{{- $topology := $gang.networkTopology -}}
{{- $volcano := or (eq $gang.provider "podgroup") (and (eq $gang.provider "kuberay") (eq $gang.scheduler "volcano")) -}}
{{- if and $topology.mode (not $volcano) -}}
{{- include "llm-ray.refuse" (list "gang.networkTopology.mode" $topology.mode "be empty without Volcano" "set gang.provider to podgroup, or to kuberay with gang.scheduler volcano") -}}
{{- end -}}
{{- if and $topology.highestTierAllowed (not $topology.mode) -}}
{{- include "llm-ray.refuse" (list "gang.networkTopology.highestTierAllowed" $topology.highestTierAllowed "come with gang.networkTopology.mode" "set the mode to hard or soft") -}}
{{- end -}}
{{- if $gang.subGroups -}}
{{- $multi := false -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $multi = or $multi (gt (int .hosts) 1) -}}
{{- end -}}
{{- if ne $gang.provider "podgroup" -}}
{{- include "llm-ray.refuse" (list "gang.subGroups" true (printf "be false with gang.provider %s, which makes no subgroups" $gang.provider) "set gang.provider to podgroup") -}}
{{- else if not $topology.mode -}}
{{- include "llm-ray.refuse" (list "gang.subGroups" true "come with gang.networkTopology.mode, which is what each subgroup keeps" "set the mode to hard or soft") -}}
{{- else if not $multi -}}
{{- include "llm-ray.refuse" (list "gang.subGroups" true "be false where no worker group has more than one host: KubeRay labels no such pods" "set it to false, or numOfHosts of a group") -}}
{{- else if eq .Values.kuberay.version "1.5" -}}
{{- include "llm-ray.refuse" (list "gang.subGroups" true "be false on KubeRay 1.5, which does not label the pods of a group of hosts" "upgrade the operator to 1.6 and say so in kuberay.version") -}}
{{- end -}}
{{- end -}}
{{- end -}}
